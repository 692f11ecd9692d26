"""`python -m bench.gpu handoff`: two real cores, on host memory; without a GPU it says so."""

from collections.abc import Callable, Sequence

import pytest

from tests import needs

Command = Callable[[Sequence[str]], int]


@pytest.fixture
def command() -> Command:
    """Loaded with torch and Triton, which no other test of this folder needs, when it is used."""
    pytest.importorskip("triton", reason=needs.TRITON)
    from bench.gpu.__main__ import main

    return main


@needs.nixl
def test_blocks_that_one_core_reads_from_another_are_the_same_bytes(
    command: Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    status = command(["handoff", "--device", "cpu", "--tokens", "65", "--rounds", "1"])

    shown = capsys.readouterr()
    assert status == 0, shown
    assert "All full blocks are the same on both sides, byte for byte." in shown.out
    assert "transfer, GB/s" in shown.out
    assert "prefill slowdown" in shown.out


def test_without_a_gpu_it_ends_with_one_sentence(
    command: Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert command(["handoff"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        "bench.gpu handoff needs a GPU that torch can use; "
        "--device cpu tries the same on host memory"
    ]

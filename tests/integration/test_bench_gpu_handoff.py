"""`python -m baton.bench.gpu handoff`: two real cores, on host memory; without a GPU it says so."""

import importlib.util

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from baton.bench.gpu import main


@pytest.mark.skipif(importlib.util.find_spec("nixl_cu12") is None, reason="NIXL is not installed")
def test_blocks_that_one_core_reads_from_another_are_the_same_bytes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    status = main(["handoff", "--device", "cpu", "--tokens", "65", "--rounds", "1"])

    shown = capsys.readouterr()
    assert status == 0, shown
    assert "All full blocks are the same on both sides, byte for byte." in shown.out
    assert "transfer, GB/s" in shown.out
    assert "prefill slowdown" in shown.out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_ends_with_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["handoff"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        "baton.bench.gpu handoff needs a GPU that torch can use; "
        "--device cpu tries the same on host memory"
    ]

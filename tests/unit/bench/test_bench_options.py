"""`python -m bench engine` refuses what it cannot measure in one line, before anything starts."""

import sys
from pathlib import Path

import pytest

from bench import __main__ as bench


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--model", "huge"], "--model 'huge': is none of nano, tiny, small"),
        (["--part", "served,gpu"], "--part 'gpu': is none of machine, core, offline, served"),
        (["--batch", "1,0"], "--batch '1,0': say numbers from 1 on"),
        (["--kv-memory", "much"], "--kv-memory 'much' is not an amount of memory"),
        (["--isa", "amx"], "--isa 'amx': is none of avx2, avx512"),
    ],
)
def test_an_option_that_means_nothing_is_named(
    options: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "out.jsonl"
    argv = ["bench", "engine", *options, "--output", str(output)]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(SystemExit) as ended:
        bench.main()
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
    assert not output.exists()

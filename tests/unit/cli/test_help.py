import sys

import pytest

from baton.cli.__main__ import COMMANDS, main


def baton(monkeypatch: pytest.MonkeyPatch, *words: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["baton", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, monkeypatch, capsys) -> None:
    assert baton(monkeypatch, command, "--help") == 0
    told = capsys.readouterr().out
    assert f"baton {command}" in told


@pytest.mark.parametrize("words", [(), ("--help",), ("help",)])
def test_without_a_command_all_of_them_are_told_on_one_screen(
    monkeypatch, capsys, words: tuple[str, ...]
) -> None:
    assert baton(monkeypatch, *words) == 0
    lines = capsys.readouterr().out.splitlines()
    told = {line.split()[0] for line in lines if line.startswith("  ")}
    assert told == set(COMMANDS)
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_each_command_takes_the_folder_of_its_stack(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setenv("BATON_HOME", "/nowhere")
    assert baton(monkeypatch, "status", "--home", str(tmp_path)) == 2
    assert f"no stack runs in {tmp_path}" in capsys.readouterr().err

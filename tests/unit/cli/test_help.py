import sys

import pytest

from baton.cli.__main__ import main

COMMANDS = ["up", "down", "status", "top", "keys", "usage", "trace", "explain", "size"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["baton", command, "--help"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 0
    assert f"baton {command}" in capsys.readouterr().out

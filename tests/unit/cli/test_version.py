"""`baton --version`."""

import sys

import pytest

from baton.cli import __main__ as cli
from baton.wire.protocol import PROTOCOL_VERSION


def test_the_version_names_the_release_and_the_wire(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["baton", "--version"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"baton 0.1.0, wire v{PROTOCOL_VERSION}, Python 3.")

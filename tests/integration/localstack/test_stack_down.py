"""`baton down` against a supervisor that takes its time to end."""

import subprocess
import sys
from pathlib import Path

import pytest

from baton.cli import __main__ as cli
from baton.cli import stack
from baton.localstack.home import Home

_SUPERVISOR = """
import os, signal, sys
from pathlib import Path
from baton.localstack.home import Home, StackState
home = Home(Path(sys.argv[1]))
owned = home.lock()
def leave(*_):
    home.write_state(None)
    sys.stdin.read()
    os._exit(0)
signal.signal(signal.SIGTERM, leave)
home.write_state(StackState(os.getpid(), "http://127.0.0.1:1/v1"))
print("ready", flush=True)
signal.pause()
"""


def test_down_returns_only_when_the_supervisor_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", _SUPERVISOR, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdin is not None
        assert supervisor.stdout is not None
        supervisor.stdout.readline()

        def let_it_end_once_its_state_is_gone(_: float) -> None:
            if Home(tmp_path).read_state() is None and not supervisor.stdin.closed:
                supervisor.stdin.close()

        monkeypatch.setattr(stack.time, "sleep", let_it_end_once_its_state_is_gone)
        monkeypatch.setenv("BATON_HOME", str(tmp_path))
        monkeypatch.setattr(sys, "argv", ["baton", "down"])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 0
        assert supervisor.poll() == 0

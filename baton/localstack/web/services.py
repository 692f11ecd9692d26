"""What the page may do with the stack's processes: read the end of a log, and kill a worker."""

import os
from pathlib import Path

import psutil

from baton.localstack.home import Home, StackState
from baton.localstack.plan import WORKER_PREFIXES
from baton.page.answers import Refused

_TAIL_BYTES = 128 * 1024
MAX_LINES = 200


def log_tail(home: Home, state: StackState, name: str) -> list[str]:
    """The last lines of a service's log. Raises Refused."""
    if name not in state.services:
        raise Refused(404, f"this stack has no {name}")
    path: Path = home.logs / f"{name}.log"
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    # The first one may be the end of a line.
    return (lines[1:] if size > _TAIL_BYTES else lines)[-MAX_LINES:]


def kill_worker(state: StackState, name: str) -> int:
    """End a worker at once (SIGKILL); returns its pid. Its supervisor starts it again.

    The state file may be older than the process: only a child of the supervisor is ended. Raises
    Refused.
    """
    if not name.startswith(WORKER_PREFIXES) or name not in state.services:
        raise Refused(404, f"this stack has no worker {name}")
    pid = int(state.services[name].get("pid", 0))
    try:
        process = psutil.Process(pid)
        if not pid or process.ppid() != state.supervisor_pid:
            raise Refused(404, f"{name} does not run now")
        process.kill()
    except psutil.NoSuchProcess:
        raise Refused(404, f"{name} does not run now") from None
    return pid

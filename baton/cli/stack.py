"""`baton down`, and the running stack that other commands ask for."""

import argparse
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any

from baton.localstack.home import Home, StackState
from baton.localstack.refusal import Refusal

_DOWN_TIMEOUT_S = 60
_POLL_S = 0.1


class NotRunning(Refusal):
    """No stack runs in this folder."""


def add_parsers(commands: Any) -> None:
    down = commands.add_parser("down", help="stop the stack of this folder")
    down.set_defaults(run=_down)


def running_state(home: Home) -> StackState:
    """Read the state of the running stack. Raises NotRunning."""
    state = home.read_state()
    if state is None:
        raise NotRunning(f"no stack runs in {home.root}; start one with: baton up (or make up)")
    return state


def _down(_: argparse.Namespace) -> int:
    state = running_state(Home.of_environment())
    has_ended = _ended_probe(state.supervisor_pid)
    os.kill(state.supervisor_pid, signal.SIGTERM)
    deadline = time.monotonic() + _DOWN_TIMEOUT_S
    while not has_ended():
        if time.monotonic() > deadline:
            print(f"pid {state.supervisor_pid} has not ended after {_DOWN_TIMEOUT_S} s")
            return 1
        time.sleep(_POLL_S)
    print("stopped")
    return 0


def _ended_probe(pid: int) -> Callable[[], bool]:
    """A function that says whether this very process has ended, reaped or not.

    The state file cannot say it: the supervisor removes it before its interpreter ends.
    """
    if hasattr(os, "pidfd_open"):
        ended = select.poll()
        ended.register(os.pidfd_open(pid), select.POLLIN)
        return lambda: bool(ended.poll(0))
    return lambda: not _exists(pid)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

"""`baton status` and `baton down`: show and stop the stack of this folder."""

import argparse
import asyncio
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any

from baton.localstack.home import Home, StackState
from baton.localstack.readiness import served_models, stack_reason
from baton.wire.guarantees import LEVELS, guarantees_of
from baton.wire.v1 import router_pb2

_DOWN_TIMEOUT_S = 60
_POLL_S = 0.1


class NotRunning(Exception):
    """No stack runs in this folder."""


def add_parsers(commands: Any) -> None:
    status = commands.add_parser(
        "status", help="the processes of the stack of this folder, and whether it is ready"
    )
    status.set_defaults(run=_status)
    down = commands.add_parser("down", help="stop the stack of this folder")
    down.set_defaults(run=_down)


def running_state(home: Home) -> StackState:
    """Read the state of the running stack. Raises NotRunning."""
    state = home.read_state()
    if state is None:
        raise NotRunning(f"no stack runs in {home.root}; start one with: make up")
    return state


def table(state: StackState) -> str:
    """One line per service: name, pid, address, metrics."""
    rows = [("service", "pid", "address", "metrics")]
    for name, row in state.services.items():
        pid = str(row.get("pid") or "down")
        rows.append((name, pid, str(row.get("endpoint", "")), str(row.get("metrics_url", ""))))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def model_lines(model: router_pb2.ModelState) -> list[str]:
    """What a model's engines guarantee, a line for each level, and what they refuse."""
    known = guarantees_of(model.engines)
    lines = [f"{model.name}  engine {', '.join(model.engines)}"]
    for level in reversed(LEVELS):
        if names := [name for name, each in known.items() if each == level]:
            lines.append(f"  {level:<9} {', '.join(names)}")
    if model.unsupported:
        lines.append(f"  {'refused':<9} {', '.join(sorted(model.unsupported))}")
    return lines


def _status(_: argparse.Namespace) -> int:
    state = running_state(Home.of_environment())
    reason = asyncio.run(stack_reason(state.endpoints()))
    models = asyncio.run(served_models(state.endpoints()))
    print(table(state))
    for model in models:
        print("", *model_lines(model), sep="\n")
    print(f"\nbase URL {state.base_url}  {'not ready: ' + reason if reason else 'ready'}")
    print(f"web page {state.web_url}")
    return 1 if reason else 0


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

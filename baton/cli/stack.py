"""`baton status` and `baton down`: what runs in this folder, and ending it."""

import argparse
import json
import os
import signal
import time
import urllib.error
import urllib.request
from typing import Any

from baton.localstack.home import Home, StackState

_DOWN_TIMEOUT_S = 60
_POLL_S = 0.1
_MAX_ANSWER_BYTES = 4096


class NotRunning(Exception):
    """No stack runs in this folder."""


def add_parsers(commands: Any) -> None:
    status = commands.add_parser("status", help="what runs where")
    status.set_defaults(run=_status)
    down = commands.add_parser("down", help="stop the stack of this folder")
    down.set_defaults(run=_down)


def running_state(home: Home) -> StackState:
    """The running stack. Raises NotRunning."""
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


def _status(_: argparse.Namespace) -> int:
    state = running_state(Home.of_environment())
    ready, reason = readiness(state.base_url)
    print(table(state))
    print(f"\nbase URL {state.base_url}  {'ready' if ready else 'not ready: ' + reason}")
    return 0 if ready else 1


def readiness(base_url: str) -> tuple[bool, str]:
    """What the gateway's /readyz says: (ready, reason)."""
    url = base_url.removesuffix("/v1") + "/readyz"
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status == 200, ""
    except urllib.error.HTTPError as error:
        return False, _reasons(error.read(_MAX_ANSWER_BYTES))
    except OSError:
        return False, "the gateway does not answer"


def _reasons(body: bytes) -> str:
    """The reasons in an answer of /readyz; the body itself when it has none."""
    try:
        return ", ".join(json.loads(body)["reasons"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip()


def _down(_: argparse.Namespace) -> int:
    state = running_state(Home.of_environment())
    os.kill(state.supervisor_pid, signal.SIGTERM)
    deadline = time.monotonic() + _DOWN_TIMEOUT_S
    home = Home.of_environment()
    while home.read_state() is not None:
        if time.monotonic() > deadline:
            print(f"pid {state.supervisor_pid} has not ended after {_DOWN_TIMEOUT_S} s")
            return 1
        time.sleep(_POLL_S)
    print("stopped")
    return 0

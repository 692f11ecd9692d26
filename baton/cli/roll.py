"""`baton roll`: every replica of a running stack leaves and starts again, one after the other.

As a rolling upgrade does it: SIGTERM, the replica drains and ends, its supervisor starts it again,
and the next one follows when the whole stack is ready. Where a service has a second replica, no
request fails meanwhile.
"""

import argparse
import asyncio
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from baton.cli.stack import running_state
from baton.localstack.home import Home, StackState
from baton.localstack.plan import is_replica
from baton.localstack.readiness import stack_reason

# Gateways last: what they carry is moved off everything else before.
ORDER = ("router", "quota", "tokenizer", "prefill", "decode", "gateway")
_TIMEOUT_S = 180.0
_POLL_S = 0.1


class RollFailed(Exception):
    """A replica did not come back; the message names it."""


def add_parsers(commands: Any) -> None:
    roll = commands.add_parser("roll", help="restart every replica, one after the other")
    help_text = "a service or one replica, such as decode or gateway-1; all services by default"
    roll.add_argument("names", nargs="*", metavar="NAME", help=help_text)
    roll.set_defaults(run=_roll)


def _roll(arguments: argparse.Namespace) -> int:
    home = Home.of_environment()
    asyncio.run(roll(home, arguments.names, lambda line: print(line, flush=True)))
    return 0


def replicas(state: StackState, names: list[str]) -> list[str]:
    """The processes that `names` stand for, in the order in which they are restarted.

    Raises RollFailed for a name that stands for none.
    """
    ordered = [
        name for service in ORDER for name in state.services if is_replica(name, service)
    ]  # fmt: skip
    for wanted in names:
        if not any(is_replica(name, wanted) for name in ordered):
            raise RollFailed(f"{wanted!r} is none of {', '.join(ordered)}")
    return [
        name
        for name in ordered
        if not names or any(is_replica(name, wanted) for wanted in names)
    ]  # fmt: skip


async def roll(home: Home, names: list[str], announce: Callable[[str], None]) -> None:
    """Restart them one by one. Raises NotRunning and RollFailed."""
    for name in replicas(running_state(home), names):
        announce(await _restart(home, name))


async def _restart(home: Home, name: str) -> str:
    """One line about how it went."""
    started, old_pid, left_s = time.monotonic(), _pid(home, name), 0.0
    os.kill(old_pid, signal.SIGTERM)
    while reason := await _reason(home, name, old_pid):
        passed_s = time.monotonic() - started
        if passed_s > _TIMEOUT_S:
            raise RollFailed(f"{name} is not back after {_TIMEOUT_S:.0f} s: {reason}")
        if not left_s and _pid(home, name) != old_pid:
            left_s = passed_s
        await asyncio.sleep(_POLL_S)
    total_s = time.monotonic() - started
    return f"{name}: left after {left_s:.1f} s, the stack was ready again after {total_s:.1f} s"


async def _reason(home: Home, name: str, old_pid: int) -> str:
    """Why the next one must wait; empty when it need not."""
    if (pid := _pid(home, name)) in (0, old_pid):
        return f"{name} has not started" if not pid else f"{name} has not left"
    return await stack_reason(running_state(home).endpoints())


def _pid(home: Home, name: str) -> int:
    """0 while it does not run."""
    return int(running_state(home).services[name].get("pid") or 0)

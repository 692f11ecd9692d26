"""`baton roll`: every replica of a running stack ends and starts again, one after the other.

As in a rolling upgrade: SIGTERM, the replica drains and ends, its supervisor starts it again,
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
from baton.localstack.refusal import Refusal

# Gateways last: their streams migrate while the other services restart.
ORDER = ("router", "quota", "tokenizer", "prefill", "decode", "gateway")
# As long as `baton up` waits: a worker may load a large model.
_TIMEOUT_S = 600.0
_POLL_S = 0.1


class RollFailed(Refusal):
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
            raise RollFailed(f"{wanted!r} is not one of {', '.join(ordered)}")
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
    """Restart one replica; returns a line with its times."""
    started, ended_s = time.monotonic(), None
    old_pid = _pid(home, name)
    if old_pid is None:
        raise RollFailed(f"{name} does not run")
    os.kill(old_pid, signal.SIGTERM)
    while reason := await _reason(home, name, old_pid):
        passed_s = time.monotonic() - started
        if passed_s > _TIMEOUT_S:
            raise RollFailed(f"{name} is not back after {_TIMEOUT_S:.0f} s: {reason}")
        if ended_s is None and _pid(home, name) != old_pid:
            ended_s = passed_s
        await asyncio.sleep(_POLL_S)
    total_s = time.monotonic() - started
    ended_s = ended_s or total_s
    return f"{name}: ended after {ended_s:.1f} s, the stack was ready again after {total_s:.1f} s"


async def _reason(home: Home, name: str, old_pid: int) -> str | None:
    """The reason why the next replica must wait; None when it need not."""
    pid = _pid(home, name)
    if pid is None:
        return f"{name} has not started again"
    if pid == old_pid:
        return f"{name} has not ended"
    return await stack_reason(running_state(home).endpoints())


def _pid(home: Home, name: str) -> int | None:
    """The replica's process id; None while it does not run."""
    return int(running_state(home).services[name].get("pid") or 0) or None

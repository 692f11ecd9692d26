"""`baton status`: the URLs, models and processes of the running stack, and whether it is ready."""

import argparse
import asyncio
import json
import textwrap
import time
from collections.abc import Iterator, Sequence
from typing import Any

from baton.cli.columns import aligned, shown_s
from baton.cli.stack import running_state
from baton.localstack.home import Home, StackState
from baton.localstack.readiness import served_models, stack_reason
from baton.wire.guarantees import LEVELS, guarantees_of
from baton.wire.v1 import router_pb2

_WIDTH = 80


def add_parsers(commands: Any) -> None:
    help_text = "the URLs, models and processes of the stack, and whether it is ready"
    status = commands.add_parser("status", help=help_text)
    status.add_argument("--json", action="store_true", help="for programs")
    status.set_defaults(run=_status)


def _status(arguments: argparse.Namespace) -> int:
    home = Home.of_environment()
    state = running_state(home)
    reason, models = asyncio.run(_look(state))
    if arguments.json:
        print(json.dumps(facts(home, state, reason, models), indent=2))
    else:
        print("\n".join(lines(home, state, reason, models)))
    return 1 if reason else 0


async def _look(state: StackState) -> tuple[str | None, list[router_pb2.ModelState]]:
    endpoints = state.endpoints()
    return await asyncio.gather(stack_reason(endpoints), served_models(endpoints))


def lines(
    home: Home, state: StackState, reason: str | None, models: Sequence[router_pb2.ModelState]
) -> Iterator[str]:
    """What people see, in 80 columns."""
    yield f"base URL  {state.base_url}  {'not ready: ' + reason if reason else 'ready'}"
    if web := state.web_url:
        yield f"web page  {web}"
    yield f"API key   in {home.dev_env}"
    yield ""
    yield table(state)
    for model in models:
        yield ""
        for line in model_lines(model):
            yield textwrap.fill(line, _WIDTH, subsequent_indent=" " * 12, break_on_hyphens=False)


def table(state: StackState) -> str:
    """One line per process: name, pid, how long it runs, restarts, port, metrics."""
    rows = [("service", "pid", "up for", "restarts", "port", "metrics")]
    now = time.time()
    for name, row in state.services.items():
        pid, started = row.get("pid"), float(row.get("started_unix_s") or now)
        port = str(row.get("endpoint", "")).rpartition(":")[2]
        rows.append((
            name,
            str(pid or "down"),
            shown_s(now - started) if pid else "",
            str(row.get("num_restarts") or ""),
            port if port.isdigit() else "socket",
            str(row.get("metrics_url", "")),
        ))  # fmt: skip
    return "\n".join(aligned(rows, right=" rrrr"))


def model_lines(model: router_pb2.ModelState) -> list[str]:
    """What a model's engines guarantee, a line for each level, and what they refuse."""
    known = guarantees_of(model.engines)
    shown = [f"{model.name}  engine {', '.join(model.engines)}"]
    for level in reversed(LEVELS):
        if names := [name for name, each in known.items() if each == level]:
            shown.append(f"  {level:<9} {', '.join(names)}")
    if model.unsupported:
        shown.append(f"  {'refused':<9} {', '.join(sorted(model.unsupported))}")
    return shown


def facts(
    home: Home, state: StackState, reason: str | None, models: Sequence[router_pb2.ModelState]
) -> dict[str, Any]:
    """The same for programs."""
    return {
        "is_ready": reason is None,
        "reason": reason,
        "base_url": state.base_url,
        "web_url": state.web_url,
        "home": str(home.root),
        "supervisor_pid": state.supervisor_pid,
        "services": state.services,
        "models": [
            {
                "name": model.name,
                "engines": list(model.engines),
                "guarantees": guarantees_of(model.engines),
                "refused": sorted(model.unsupported),
            }
            for model in models
        ],
    }

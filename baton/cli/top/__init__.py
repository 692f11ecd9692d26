"""`baton top`: the running fleet in the terminal, live. Reads `/metrics` and the gateways' admin
ports only."""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from baton.cli.columns import aligned
from baton.cli.stack import running_state
from baton.cli.top import look as looks
from baton.localstack.home import Home
from baton.localstack.refusal import Refusal
from baton.page.scraper import Scraper

_MIN_INTERVAL_S = 0.2


def add_parsers(commands: Any) -> None:
    help_text = "the fleet and its open requests, live; ? shows the keys"
    parser = commands.add_parser("top", help=help_text, description=help_text)
    help_text = "between two looks (1)"
    parser.add_argument("--interval", type=float, default=1.0, metavar="SECONDS", help=help_text)
    parser.add_argument("--once", action="store_true", help="print one look and end")
    parser.add_argument("--json", action="store_true", help="one look, for programs")
    parser.set_defaults(run=_top)


def _top(arguments: argparse.Namespace) -> int:
    if not arguments.interval >= _MIN_INTERVAL_S:
        raise Refusal(f"--interval {arguments.interval:g}: must be {_MIN_INTERVAL_S} or more")
    home = Home.of_environment()
    running_state(home)
    if sys.stdout.isatty() and not (arguments.once or arguments.json):
        # Only here: its import takes longer than all other commands.
        from baton.cli.top.app import FleetApp

        FleetApp(home, arguments.interval).run()
        return 0
    look = _look(home, arguments.interval)
    print(json.dumps(look.facts(), indent=1) if arguments.json else "\n".join(render(look)))
    return 0


def _look(home: Home, interval_s: float) -> looks.Look:
    scraper = Scraper()
    try:
        before = scraper.read(running_state(home).fleet().services)
        time.sleep(interval_s)
        state = running_state(home)
        services = state.fleet().services
        return looks.look(state, before, scraper.read(services), scraper.open_requests(services))
    finally:
        scraper.close()


def render(look: looks.Look) -> Iterator[str]:
    """The lines of one look."""
    yield f"Baton  {look.state.base_url}"
    yield from looks.summary(look)
    tables: list[tuple[Sequence[str], Sequence[Sequence[str]]]] = [
        (looks.WORKER_COLUMNS, looks.worker_rows(look)),
    ]
    if look.requests:
        tables.append((looks.REQUEST_COLUMNS, looks.request_rows(look)))
    for columns, rows in tables:
        yield ""
        table = [list(columns), *map(list, rows)]
        if not look.has_models:
            table = looks.without_models(columns, rows)
        right = "".join(" " if name in looks.TEXTS else "r" for name in table[0])
        yield from aligned(table, right)
    if not look.requests:
        yield from ("", "no open requests")

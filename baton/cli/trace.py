"""`baton trace`: the last requests as a table, or the waterfall of one, from the local spans."""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from baton.cli.columns import aligned, cut, shown_s
from baton.localstack.home import Home, StackState
from baton.localstack.waterfall import facts, render
from baton.page.scraper import Scraper
from baton.page.span_store import MAX_SPANS, SpanStore, StoredSpan
from baton.wire import usage_log

# Spans are exported in batches: those of a request that has just ended may not be stored yet.
_WAIT_S = 3.0
_SETTLED_S = 0.7
# So many requests are looked at for --slow, --failed and --tenant.
_LOOKED_AT = 10_000


def add_parsers(commands: Any) -> None:
    help_text = "the last requests, or where the time of one went"
    parser = commands.add_parser("trace", help=help_text, description=help_text)
    help_text = "x-request-id, or the client's own; without it: the last requests"
    parser.add_argument("request_id", nargs="?", help=help_text)
    parser.add_argument("--last", type=int, default=15, metavar="N", help="so many requests (15)")
    parser.add_argument("--slow", action="store_true", help="the slowest ones first")
    parser.add_argument("--failed", action="store_true", help="those that failed")
    parser.add_argument("--tenant", metavar="T", help="of this tenant")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=_trace)


def _trace(arguments: argparse.Namespace) -> int:
    home = Home.of_environment()
    if not home.spans.exists():
        print(f"no spans in {home.root}: no stack has run there")
        return 1
    state = home.read_state()
    with SpanStore(home.spans) as store:
        if not arguments.request_id:
            found = _matching(store.last_requests(_LOOKED_AT), arguments)
            print(_as_json(found) if arguments.json else "\n".join(_table(found)))
            return 0
        spans = _wait_for(store, arguments.request_id, is_running=state is not None)
    if not spans:
        print(_why_none(home, state, arguments.request_id), file=sys.stderr)
        return 1
    web_url = f"{state.web_url}#/requests/{spans[0].request_id}" if state and state.web_url else ""
    if arguments.json:
        print(json.dumps(facts(spans, web_url), indent=1))
    else:
        print("\n".join(render(spans, terminal_width(), web_url)))
    return 0


def terminal_width() -> int | None:
    """The columns of the terminal; None where output goes to a file or a program."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _matching(spans: Sequence[StoredSpan], arguments: argparse.Namespace) -> list[StoredSpan]:
    """The requests that are asked for, newest first, or slowest first."""
    found = [
        span
        for span in spans
        if (span.failed or not arguments.failed)
        and arguments.tenant in (None, span.attributes.get("baton.tenant"))
    ]
    if arguments.slow:
        found.sort(key=lambda span: span.start_ns - span.end_ns)
    return found[: max(arguments.last, 0)]


def _table(spans: Sequence[StoredSpan]) -> Iterator[str]:
    if not spans:
        yield "no such requests"
        return
    rows = [("time", "request", "ms", "tokens", "outcome", "tenant", "model")]
    for span in spans:
        of = span.attributes
        rows.append((
            f"{datetime.fromtimestamp(span.start_ns / 1e9).astimezone():%H:%M:%S}",
            span.request_id,
            f"{(span.end_ns - span.start_ns) / 1e6:,.0f}",
            of.get("gen_ai.usage.output_tokens", ""),
            "FAILED" if span.failed else of.get("baton.outcome", ""),
            of.get("baton.tenant", ""),
            of.get("gen_ai.request.model", ""),
        ))  # fmt: skip
    for line in aligned(rows, right="  rr"):
        yield cut(line, terminal_width())


def _as_json(spans: Sequence[StoredSpan]) -> str:
    return json.dumps(
        [
            {
                "request_id": span.request_id,
                "started_unix_s": span.start_ns / 1e9,
                "duration_ms": (span.end_ns - span.start_ns) / 1e6,
                "failed": span.failed,
                "attributes": span.attributes,
            }
            for span in spans
        ],
        indent=1,
    )


def _wait_for(store: SpanStore, request_id: str, *, is_running: bool) -> list[StoredSpan]:
    """The request's spans, after their root has come and no more follow."""
    deadline = time.monotonic() + (_WAIT_S if is_running else 0)
    spans = store.of_request(request_id)
    while time.monotonic() < deadline:
        age_s = time.time() - max((span.end_ns for span in spans), default=0) / 1e9
        if spans and age_s > _SETTLED_S and any(not span.parent_id for span in spans):
            break
        time.sleep(0.1)
        spans = store.of_request(request_id)
    return spans


def _why_none(home: Home, state: StackState | None, request_id: str) -> str:
    """Tell an open request, one whose spans are gone, and one that nobody knows apart."""
    for row in _open_requests(state) if state else ():
        if row["request_id"] == request_id:
            where = f"open for {shown_s(row['age_s'])}, now in {row['stage']}"
            return f"{request_id} is {where}: its trace is complete when it ends"
    for path in reversed(list(usage_log.files(home.usage)) if home.usage.is_dir() else []):
        with path.open("rb") as file:
            is_there = any(request_id.encode() in line for line in file)
        if is_there:
            day = path.stem.partition("-")[2]
            return (
                f"{request_id} ended on {day}; its spans are gone (the newest {MAX_SPANS:,} are "
                "kept, and those of requests that were sampled)"
            )
    return f"nobody knows a request {request_id} in {home.root}; baton trace lists the last ones"


def _open_requests(state: StackState) -> list[dict[str, Any]]:
    scraper = Scraper()
    try:
        return scraper.open_requests(state.fleet().services)
    finally:
        scraper.close()

"""`baton trace REQUEST_ID`: the waterfall of a request's spans, from the local span store."""

import argparse
import shutil
import time
from typing import Any

from baton.localstack.home import Home
from baton.localstack.span_store import SpanStore, StoredSpan
from baton.localstack.waterfall import render

# Spans are exported in batches: those of a request that has just ended may not be stored yet.
_WAIT_S = 3.0
_SETTLED_S = 0.7
_SHOWN_IDS = 10


def add_parsers(commands: Any) -> None:
    parser = commands.add_parser("trace", help="the waterfall of one request's spans")
    parser.add_argument(
        "request_id",
        nargs="?",
        help="x-request-id, or the client's own; without it: the last requests",
    )
    parser.set_defaults(run=_trace)


def _trace(arguments: argparse.Namespace) -> int:
    home = Home.of_environment()
    if not home.spans.exists():
        print(f"no spans in {home.root}: no stack has run there")
        return 1
    with SpanStore(home.spans) as store:
        if not arguments.request_id:
            print("\n".join(store.last_request_ids(_SHOWN_IDS)) or "no requests yet")
            return 0
        spans = _wait_for(store, arguments.request_id)
    print(render(spans, width=max(shutil.get_terminal_size((120, 24)).columns, 80)))
    if spans and (state := home.read_state()) is not None:
        print(f"in the browser: {state.web_url}#/requests/{spans[0].request_id}")
    return 0 if spans else 1


def _wait_for(store: SpanStore, request_id: str) -> list[StoredSpan]:
    """The request's spans, after their root has come and no more follow."""
    deadline = time.monotonic() + _WAIT_S
    spans = store.of_request(request_id)
    while time.monotonic() < deadline:
        age_s = time.time() - max((span.end_ns for span in spans), default=0) / 1e9
        if spans and age_s > _SETTLED_S and any(not span.parent_id for span in spans):
            break
        time.sleep(0.1)
        spans = store.of_request(request_id)
    return spans

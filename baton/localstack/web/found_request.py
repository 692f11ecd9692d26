"""One request as the page shows it: what is known of it, and why nothing more."""

from pathlib import Path
from typing import Any

from baton.localstack.home import Home
from baton.localstack.span_store import SpanStore
from baton.localstack.web import span_names
from baton.localstack.web.fleet_watch import FleetWatch
from baton.localstack.web.request_rows import row_of, shown_span

# Of the usage records, newest first, as many bytes are looked through for an old request.
_MAX_SEARCHED_BYTES = 256 * 2**20

RUNNING, ENDED, UNREPORTED, EXPIRED, UNKNOWN = (
    "running", "ended", "unreported", "expired", "unknown"
)  # fmt: skip


def found_request(home: Home, watch: FleetWatch, request_id: str) -> dict[str, Any]:
    """All about a request. Blocks.

    `state`: running; ended; unreported (the span of the whole is not there: it has just ended, or
    its gateway was killed); expired (its usage was recorded, and its spans are no longer kept);
    unknown.
    """
    with SpanStore(home.spans) as store:
        spans = store.of_request(request_id)
    # A client may have called it by a name of its own.
    own_id = next((span.request_id for span in spans if span.request_id), request_id)
    whole = next((s for s in spans if span_names.kind_of(s) == span_names.REQUEST), None)
    stack = home.read_state()
    running = None if stack is None or whole else watch.open_request(stack, own_id)
    state = ENDED if whole else RUNNING if running else UNREPORTED if spans else ""
    if not state:
        state = EXPIRED if _was_recorded(home.usage, own_id) else UNKNOWN
    return {
        "request_id": own_id,
        "state": state,
        "row": row_of(whole, spans) if whole else None,
        "running": running,
        "spans": [shown_span(span) for span in spans],
        "explanation": None if stack is None else watch.explanation(stack, own_id),
    }


def _was_recorded(folder: Path, request_id: str) -> bool:
    """True if the usage records have the request."""
    wanted = f'"{request_id}"'.encode()
    num_bytes = 0
    for path in sorted(folder.glob("usage-*.jsonl"), reverse=True):
        num_bytes += path.stat().st_size
        if num_bytes > _MAX_SEARCHED_BYTES:
            return False
        with path.open("rb") as lines:
            if any(wanted in line for line in lines):
                return True
    return False

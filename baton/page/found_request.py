"""One request as the page shows it: what is known of it, and why nothing more."""

from pathlib import Path
from typing import Any

from baton.page import span_names
from baton.page.fleet_watch import FleetWatch
from baton.page.request_rows import row_of, shown_span
from baton.page.span_store import SpanStore

# Of the usage records, newest first, as many bytes are looked through for an old request.
_MAX_SEARCHED_BYTES = 256 * 2**20

RUNNING, ENDED, UNREPORTED, EXPIRED, UNKNOWN, UNKEPT = (
    "running", "ended", "unreported", "expired", "unknown", "unkept"
)  # fmt: skip


def found_request(
    watch: FleetWatch, kept: Path, usage: Path | None, request_id: str
) -> dict[str, Any]:
    """All about a request, from the spans that are kept and the folder of usage records. Blocks.

    `state`: running; ended; unreported (the span of the whole is not there: it has just ended, or
    its gateway was killed); expired (its usage was recorded, and its spans are no longer kept);
    unknown; unkept (there are no records to tell an expired request from one that never was).
    """
    with SpanStore(kept) as store:
        spans = store.of_request(request_id)
    # A client may have called it by a name of its own.
    own_id = next((span.request_id for span in spans if span.request_id), request_id)
    whole = next((s for s in spans if span_names.kind_of(s) == span_names.REQUEST), None)
    running = None if whole else watch.open_request(own_id)
    state = ENDED if whole else RUNNING if running else UNREPORTED if spans else ""
    if not state and usage is None:
        state = UNKEPT
    elif not state and usage:
        state = EXPIRED if _was_recorded(usage, own_id) else UNKNOWN
    return {
        "request_id": own_id,
        "state": state,
        "row": row_of(whole, spans) if whole else None,
        "running": running,
        "spans": [shown_span(span) for span in spans],
        "explanation": watch.explanation(own_id),
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

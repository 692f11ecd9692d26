"""The requests of the span store as the page lists them, with what the list is filtered by.

Pure apart from the store.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from baton.page import span_names
from baton.page.span_names import count
from baton.page.span_store import SpanStore, StoredSpan

MAX_ROWS = 200
# Of the newest requests, those among which a filter looks.
_MAX_SEARCHED = 5000
_FAILED = "failed"
# Besides the whole request's span, those that a row needs.
_PREFILL = (span_names.PREFILL, span_names.PREFILL_COMPUTE)
_PARTS = (span_names.DECODE, span_names.HANDOFF, *_PREFILL, span_names.MOVE)


@dataclass(frozen=True, slots=True)
class Filter:
    """The requests that a list should show. Empty = all."""

    text: str = ""
    tenant: str = ""
    model: str = ""
    outcome: str = ""  # or "failed"
    slower_s: float = 0.0
    since_s: float = 0.0
    worker: str = ""

    def takes(self, span: StoredSpan) -> bool:
        """True for the span of a request that is asked for."""
        own = span.attributes
        outcome = own.get(span_names.OUTCOME, "")
        outcomes = {outcome, _FAILED} if span.failed else {outcome}
        names = (span.request_id, own.get("baton.client_request_id", ""))
        return (
            self.tenant in ("", own.get(span_names.TENANT))
            and self.model in ("", own.get(span_names.MODEL))
            and (not self.outcome or self.outcome in outcomes)
            and any(self.text in name for name in names)
        )


def listed(store: SpanStore, wanted: Filter) -> dict[str, Any]:
    """The newest requests that a filter takes, and the values that it may take."""
    since_ns = int((time.time() - wanted.since_s) * 1e9) if wanted.since_s else 0
    found = store.requests(since_ns, int(wanted.slower_s * 1e9), _MAX_SEARCHED)
    taken = [span for span in found if wanted.takes(span)]
    rows = rows_of(store, taken[: MAX_ROWS if not wanted.worker else _MAX_SEARCHED])
    if wanted.worker:
        rows = [row for row in rows if wanted.worker in row["workers"]][:MAX_ROWS]
    return {
        "rows": rows,
        "num_found": len(rows) if wanted.worker else len(taken),
        "tenants": _values(found, span_names.TENANT),
        "models": _values(found, span_names.MODEL),
        "outcomes": _values(found, span_names.OUTCOME),
    }


def rows_of(store: SpanStore, requests: Sequence[StoredSpan]) -> list[dict[str, Any]]:
    """A row for each request, from its own span and those of its parts."""
    parts: dict[str, list[StoredSpan]] = defaultdict(list)
    for part in store.named_in({span.trace_id for span in requests}, _PARTS):
        parts[part.request_id].append(part)
    return [row_of(span, parts[span.request_id]) for span in requests]


def row_of(span: StoredSpan, parts: Sequence[StoredSpan]) -> dict[str, Any]:
    """One request."""
    own = span.attributes
    seconds = (span.end_ns - span.start_ns) / 1e9
    num_output = count(own, span_names.OUTPUT_TOKENS)
    first_s = _first_token_s(span, parts)
    later_s = 0.0 if first_s is None else seconds - first_s
    return {
        "request_id": span.request_id,
        "started_unix_s": span.start_ns / 1e9,
        "seconds": seconds,
        "failed": span.failed,
        "tenant": own.get(span_names.TENANT, ""),
        "model": own.get(span_names.MODEL, ""),
        "outcome": own.get(span_names.OUTCOME, ""),
        "num_prompt_tokens": count(own, span_names.INPUT_TOKENS),
        "num_cached_tokens": count(own, span_names.CACHED_TOKENS),
        "num_output_tokens": num_output,
        "num_attempts": count(own, span_names.NUM_ATTEMPTS),
        "first_token_s": first_s,
        "tokens_per_s": (num_output - 1) / later_s if num_output > 1 and later_s > 0 else None,
        "prefill": _workers(parts, *_PREFILL),
        # The span of a decode that was killed is never told; that of its handoff was.
        "workers": _workers(parts, span_names.DECODE, span_names.HANDOFF),
        "num_moves": sum(part.name == span_names.MOVE for part in parts),
    }


def _first_token_s(span: StoredSpan, parts: Iterable[StoredSpan]) -> float | None:
    """From its own span; else the end of the first prefill, which brings the token."""
    if (told_s := span_names.first_token_s(span)) is not None:
        return told_s
    bringing = (span_names.HANDOFF, span_names.PREFILL_COMPUTE)
    prefills = [part for part in parts if part.name in bringing]
    if not prefills:
        return None
    first = min(prefills, key=lambda part: part.start_ns)
    ends = [part.end_ns for part in prefills if part.start_ns <= first.end_ns]
    return (max(ends) - span.start_ns) / 1e9


def _workers(parts: Iterable[StoredSpan], *names: str) -> list[str]:
    """The workers of the parts with these names, in order, each once."""
    own = sorted((part for part in parts if part.name in names), key=lambda part: part.start_ns)
    named = (part.attributes.get(span_names.WORKER, "") for part in own)
    return list(dict.fromkeys(filter(None, named)))


def _values(spans: Iterable[StoredSpan], name: str) -> list[str]:
    return sorted({value for span in spans if (value := span.attributes.get(name))})


def shown_span(span: StoredSpan) -> dict[str, Any]:
    """A span as the waterfall takes it."""
    names = {"kind": span_names.kind_of(span), "colour": span_names.service_of(span)}
    return asdict(span) | names

"""A request's spans as a waterfall of text: milliseconds, bar, service and span."""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime

from baton.page.span_store import StoredSpan

# Of the span of a whole request alone, when it has ended.
_OUTCOME = "baton.outcome"
_MS_CHARS = 9
_MIN_BAR_CHARS, _MAX_BAR_CHARS = 12, 60
_PLAIN_BAR_CHARS = 30
# Left for what is told behind a name.
_TOLD_CHARS = 20
# Ends with the first token: the prefill worker's, or the decode worker's own where it prefills.
_FIRST_TOKEN_SPANS = ("handoff", "prefill.compute")
# Eighths of a character, so that short spans differ.
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def render(spans: Sequence[StoredSpan], width: int | None = None, web_url: str = "") -> list[str]:
    """Lines for all traces of one request, children below their parents in start order.

    Nothing is wider than `width`; None = whole, with all attributes. Without spans: no lines.
    """
    if not spans:
        return []
    rows = list(_in_order(spans))
    start, end = min(span.start_ns for span in spans), max(span.end_ns for span in spans)
    services = max(len(_service(span)) for span, _ in rows)
    names = max(len(_name(span, depth)) for span, depth in rows)
    bar_chars = _PLAIN_BAR_CHARS
    if width is not None:
        room = width - _MS_CHARS - services - names - 6 - _TOLD_CHARS
        bar_chars = max(_MIN_BAR_CHARS, min(room, _MAX_BAR_CHARS))
    bars = _Bars(start, max(end - start, 1), bar_chars, _first_token_ns(spans))
    lines = [*_head(spans, bars), *([f"web  {web_url}"] if web_url else []), "", bars.axis()]
    for span, depth in rows:
        shown = f"{_service(span):<{services}}  {_name(span, depth):<{names}}"
        line = f"{_ms(span):>{_MS_CHARS}}  {bars.bar(span)}  {shown}{_told(span)}"
        lines.append(line.rstrip())
    return [_cut(line, width) for line in lines]


def has_ended(spans: Sequence[StoredSpan]) -> bool:
    """True when the span of the whole request is there."""
    return any(_OUTCOME in span.attributes for span in spans)


def facts(spans: Sequence[StoredSpan], web_url: str = "") -> dict[str, object]:
    """The same for programs, in milliseconds since the first span."""
    start = min(span.start_ns for span in spans)
    first_ns = _first_token_ns(spans)
    return {
        "request_id": spans[0].request_id,
        "trace_id": spans[0].trace_id,
        "web_url": web_url or None,
        "first_token_ms": None if first_ns is None else (first_ns - start) / 1e6,
        "spans": [
            {
                "depth": depth,
                "service": span.service,
                "name": span.name,
                "start_ms": (span.start_ns - start) / 1e6,
                "duration_ms": (span.end_ns - span.start_ns) / 1e6,
                "failed": span.failed,
                "attributes": span.attributes,
            }
            for span, depth in _in_order(spans)
        ],
    }


class _Bars:
    """Draws spans on one axis of time, with a mark where the first token came."""

    def __init__(self, start_ns: int, total_ns: int, num_chars: int, first_ns: int | None) -> None:
        self.total_ms = total_ns / 1e6
        self.first_ms = None if first_ns is None else (first_ns - start_ns) / 1e6
        self._start_ns, self._total_ns, self._num_chars = start_ns, total_ns, num_chars
        self._mark = None if first_ns is None else self._place(first_ns)

    def axis(self) -> str:
        last = f"{self.total_ms:,.0f} ms"
        ticks = "0".ljust(self._num_chars - len(last)) + last
        return f"{'ms':>{_MS_CHARS}}  {ticks}"

    def bar(self, span: StoredSpan) -> str:
        first, last = self._place(span.start_ns), self._place(span.end_ns)
        cells = ["·"] * self._num_chars
        if self._mark is not None:
            cells[self._mark] = "┊"
        cells[first : last + 1] = "█" * (last + 1 - first)
        if first == last:
            share = (span.end_ns - span.start_ns) * self._num_chars * 8 // self._total_ns
            cells[first] = _EIGHTHS[max(1, min(share, 8))]
        return "".join(cells)

    def _place(self, at_ns: int) -> int:
        place = (at_ns - self._start_ns) * self._num_chars // self._total_ns
        return max(0, min(place, self._num_chars - 1))


def _head(spans: Sequence[StoredSpan], bars: _Bars) -> Iterator[str]:
    """Who asked for what, how it went, and when the first token came."""
    request = next((span for span in spans if _OUTCOME in span.attributes), None)
    of = request.attributes if request else {}
    yield f"request {spans[0].request_id}"
    at = datetime.fromtimestamp(min(span.start_ns for span in spans) / 1e9).astimezone()
    outcome = of[_OUTCOME] if request else "not ended"
    words = (
        f"{at:%Y-%m-%d %H:%M:%S}",
        of.get("gen_ai.request.model", ""),
        of.get("baton.tenant", ""),
        outcome,
        f"{bars.total_ms:,.1f} ms",
    )
    yield "  ".join(filter(None, words))
    told = []
    if bars.first_ms is not None:
        told.append(f"first token after {bars.first_ms:,.1f} ms")
    if tokens := of.get("gen_ai.usage.output_tokens"):
        told.append(f"{of.get('gen_ai.usage.input_tokens', '?')} tokens in, {tokens} out")
    if cached := of.get("gen_ai.usage.cache_read.input_tokens"):
        told.append(f"{cached} from the cache")
    if told:
        yield ", ".join(told)


def _first_token_ns(spans: Sequence[StoredSpan]) -> int | None:
    """The end of the first handoff that worked, or of the first prefill without one."""
    for name in _FIRST_TOKEN_SPANS:
        ends = [span.end_ns for span in spans if span.name == name and not span.failed]
        if ends:
            return min(ends)
    return None


def _service(span: StoredSpan) -> str:
    return span.service.removeprefix("baton-").replace("_worker", "").replace("-worker", "")


def _name(span: StoredSpan, depth: int) -> str:
    return "  " * depth + span.name


def _ms(span: StoredSpan) -> str:
    return f"{(span.end_ns - span.start_ns) / 1e6:,.2f}"


def _told(span: StoredSpan) -> str:
    """What matters beside a span: first that it failed, and why."""
    attributes = dict(span.attributes)
    failure = attributes.pop("error.type", "")
    failed = f"  FAILED {failure}".rstrip() if span.failed else ""
    pairs = (f"{key.removeprefix('baton.')}={_value(text)}" for key, text in attributes.items())
    others = " ".join(pairs)
    return failed + (f"  {others}" if others else "")


def _value(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if " " in text else text


def _cut(line: str, width: int | None) -> str:
    return line if width is None or len(line) <= width else line[: width - 1].rstrip() + "…"


def _in_order(spans: Sequence[StoredSpan]) -> Iterator[tuple[StoredSpan, int]]:
    known = {span.span_id for span in spans}
    # A killed process has not exported its own spans: their children go below the request's span.
    root = next((span.span_id for span in spans if not span.parent_id), "")
    children: dict[str, list[StoredSpan]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: (span.start_ns, -span.end_ns)):
        parent = span.parent_id if span.parent_id in known else root
        children["" if span.span_id == root else parent].append(span)
    stack = [(span, 0) for span in reversed(children[""])]
    while stack:
        span, depth = stack.pop()
        yield span, depth
        stack += [(child, depth + 1) for child in reversed(children[span.span_id])]

"""A request's spans as a waterfall in the terminal: service, span name, bar, milliseconds."""

from collections import defaultdict
from collections.abc import Iterator

from baton.localstack.span_store import StoredSpan

_BAR_CHARS = 40
_SHOWN_ATTRIBUTES = 4


def render(spans: list[StoredSpan], width: int = 120) -> str:
    """Lines for all traces of one request, children below their parents in start order."""
    if not spans:
        return "no spans"
    start = min(span.start_ns for span in spans)
    total = max(max(span.end_ns for span in spans) - start, 1)
    rows = list(_in_order(spans))
    names = [f"{span.service}  {'  ' * depth}{span.name}" for span, depth in rows]
    name_width = max(len(name) for name in names)
    head = f"request {spans[0].request_id}  trace {spans[0].trace_id}  {total / 1e6:.1f} ms"
    lines = [head]
    for (span, _), name in zip(rows, names, strict=True):
        bar = _bar(span, start, total)
        failed = "  FAILED" if span.failed else ""
        line = f"{name:<{name_width}}  {bar}  {(span.end_ns - span.start_ns) / 1e6:9.2f} ms{failed}"
        lines.append((line + _attributes(span))[:width].rstrip())
    return "\n".join(lines)


def _bar(span: StoredSpan, start: int, total: int) -> str:
    begin = (span.start_ns - start) * _BAR_CHARS // total
    length = max(1, (span.end_ns - span.start_ns) * _BAR_CHARS // total)
    begin = min(begin, _BAR_CHARS - 1)
    return ("·" * begin + "█" * min(length, _BAR_CHARS - begin)).ljust(_BAR_CHARS, "·")


def _attributes(span: StoredSpan) -> str:
    pairs = [f"{key.removeprefix('baton.')}={value}" for key, value in span.attributes.items()]
    return "  " + " ".join(pairs[:_SHOWN_ATTRIBUTES]) if pairs else ""


def _in_order(spans: list[StoredSpan]) -> Iterator[tuple[StoredSpan, int]]:
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

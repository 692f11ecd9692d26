"""A stage of a request: a span below the request's, and a mark on its timer."""

from collections.abc import Iterator
from contextlib import contextmanager

from baton.runtime.telemetry import Span, start_span
from services.gateway.exchange import Exchange
from services.gateway.ports import CallContext


@contextmanager
def stage(x: Exchange, name: str, move: Span | None = None) -> Iterator[Span]:
    """The time in here is stage `name`, also when it fails; all of a `move` is one stage."""
    if x.sink.gone_s is None and move is None:
        x.stage = name
    try:
        with start_span(name, parent=move or x.span, request_id=x.request_id) as span:
            yield span
    finally:
        x.timer.mark("move" if move else name)


def call_context(x: Exchange, span: Span, deadline_s: float) -> CallContext:
    """Of a call that belongs to a stage."""
    return CallContext(x.request_id, deadline_s, span.traceparent)

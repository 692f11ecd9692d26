"""Where a request's time goes, from its first attempt to its last token.

    prefill          from a submit to the first token (the worker's own stages take their share)
    decode           while tokens come
    move             from the loss of an attempt to the next token, wherever that comes from

Together with the stages before and after they add up to the request's wall time.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from baton.runtime.telemetry import Span, start_span
from baton.system.clock import Clock
from services.gateway import instruments
from services.gateway.clients.protocols import CallContext
from services.gateway.request import reports
from services.gateway.request.state import Exchange, head_of


class Timeline:
    """Of one request. Its answer has begun with its first token, and not before."""

    def __init__(self, x: Exchange, clock: Clock) -> None:
        self._x = x
        self._clock = clock
        self._gaps = reports.TokenGaps(x, clock)
        self._has_begun = False
        self._lost_s = 0.0
        # Since the loss of an attempt, until the next token.
        self.move: Span | None = None

    def submit(self) -> None:
        """An attempt begins."""
        if self.move is None:
            self._x.stage = "prefill"

    async def begin(self, worker_stages: Mapping[str, float]) -> None:
        """An attempt's first token is there, or nothing more will come. `worker_stages`: what the
        worker spent up to there, in seconds."""
        if self.move is not None:
            self._x.timer.mark("move")
            instruments.GATEWAY_MOVE_SECONDS.observe(self._clock.now() - self._lost_s)
            self.move.end()
            self.move = None
        self._x.stage = "decode"
        if not self._has_begun:
            self._has_begun = True
            prefill_s = self._x.timer.mark("prefill")
            reports.of_first_token(self._x, prefill_s, worker_stages)
            await self._x.sink.started(head_of(self._x))

    def deliver(self) -> None:
        """Tokens are being delivered now."""
        self._gaps.note()

    def pause(self) -> None:
        """An attempt is over."""
        if self.move is not None:
            self._x.timer.mark("move")
        else:
            self._x.timer.mark("decode" if self._has_begun else "prefill")

    def lose(self, reason: str, worker_id: str) -> None:
        """An attempt has failed, and another one follows."""
        x = self._x
        if self.move is not None or not self._has_begun:
            reports.of_retry(x, reason)
            return
        self._lost_s = self._clock.now()
        x.deadlines.await_next_token()
        x.stage = "move"
        self.move = start_span(
            "move",
            parent=x.span,
            request_id=x.request_id,
            attributes={
                "baton.lost.epoch": x.progress.num_attempts,
                "baton.lost.reason": reason,
                "baton.lost.worker_id": worker_id,
            },
        )
        reports.of_move(x, reason)

    def end(self) -> None:
        """The request is over, however it ended."""
        if self.move is not None:
            self.move.fail("not_moved")
            self.move.end()
            self.move = None


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

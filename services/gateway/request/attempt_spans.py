"""The spans of one request's attempts, and what its own span says of them.

    attempt         one call to a decode worker, with the pick that chose the worker as a link
    wait for room   from the first refusal for room until a worker takes the request
    move            a migration, with links to the attempt that was lost and to the next one

A refusal for room is no attempt (decision 0004) and no failure: it has no span of its own. The
picks that follow it stand below the wait. Nothing here decides anything.
"""

from opentelemetry.trace import SpanKind

from baton.runtime.telemetry import AttributeValue, Span, start_span
from baton.system.clock import Clock
from baton.wire.v1 import router_pb2


class AttemptSpans:
    """The attempts of one request, one after the other. `workers` are known of every request; spans
    are built only where the trace is sampled."""

    def __init__(self, root: Span, request_id: str, clock: Clock) -> None:
        self._root = root
        self._clock = clock
        self._request_id = request_id
        # The workers of the attempts so far, "decode" or "decode<prefill", without refusals.
        self.workers: list[str] = []
        # Picks, and what is done for them, are below it while it is there.
        self.wait: Span | None = None
        self.move: Span | None = None
        # The pick of the next attempt.
        self.pick: Span = root
        self._attempt: Span | None = None
        self._submitted_s = 0.0
        self._num_refusals = 0

    def submit(self, pick: router_pb2.PickResponse, epoch: int) -> str:
        """Begin an attempt; returns the trace context for its worker."""
        worker_id = pick.decode.worker_id
        prefill_id = pick.prefill.worker_id if pick.HasField("prefill") else ""
        self.workers.append(f"{worker_id}<{prefill_id}" if prefill_id else worker_id)
        if not self._root.is_recorded:
            return self._root.traceparent
        self._submitted_s = self._clock.now()
        names: dict[str, AttributeValue] = {"baton.worker_id": worker_id, "baton.epoch": epoch}
        if prefill_id:
            names["baton.prefill_worker_id"] = prefill_id
        self._attempt = start_span(
            "attempt",
            parent=self.move or self._root,
            request_id=self._request_id,
            kind=SpanKind.CLIENT,
            attributes=names,
        )
        self._attempt.link(self.pick.traceparent, "pick")
        return self._attempt.traceparent

    def take(self) -> None:
        """Note that a worker is at work: it had room for the attempt."""
        if self.wait is not None:
            if self._attempt is not None:
                self.wait.link(self._attempt.traceparent, "chosen")
            self._end_wait(self._submitted_s)
        if self.move is not None and self._attempt is not None:
            self.move.link(self._attempt.traceparent, "chosen")

    def refuse(self, worker_id: str) -> None:
        """Note that this worker has no room for the attempt: it is none, and its span is not
        sent."""
        self.workers.pop()
        self._attempt = None
        self._num_refusals += 1
        if self.wait is None:
            self.wait = start_span(
                "wait for room",
                parent=self.move or self._root,
                request_id=self._request_id,
                start_s=self._submitted_s if self._root.is_recorded else None,
            )
        self.wait.set("baton.num_refusals", self._num_refusals)
        self.wait.set("baton.refused_by", worker_id)

    def end(self, error: BaseException | None) -> str:
        """End the attempt, if there is one; returns its trace context."""
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return ""
        self.take()
        attempt.close(type(error) if error is not None else None, error)
        return attempt.traceparent

    def begin_move(self, reason: str, worker_id: str, lost: tuple[int, str]) -> Span:
        """Begin the migration away from a worker; `lost` are the epoch and the trace context of the
        attempt."""
        epoch, traceparent = lost
        self.move = start_span(
            "move",
            parent=self._root,
            request_id=self._request_id,
            attributes={
                "baton.lost.epoch": epoch,
                "baton.lost.reason": reason,
                "baton.lost.worker_id": worker_id,
            },
        )
        self.move.link(traceparent, "lost")
        return self.move

    def end_move(self) -> None:
        """Note that the stream goes on at another worker."""
        if self.move is not None:
            self.move.end()
            self.move = None

    def close(self) -> None:
        """Note that the request is over: what is open has led to nothing."""
        self._end_wait(None)
        if self.move is not None:
            self.move.fail("not_moved")
            self.end_move()

    def _end_wait(self, end_s: float | None) -> None:
        if self.wait is not None:
            if self.wait.is_recorded:
                self.wait.end(end_s)
            self.wait, self._num_refusals = None, 0

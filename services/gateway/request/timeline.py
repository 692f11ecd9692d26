"""The stages of a request's time from its first attempt to its last token.

    prefill          from a submit to the first token (the worker's own stages take their share)
    decode           while tokens come
    move             a migration: from the loss of an attempt to the next token

Together with the stages before and after they add up to the request's wall time.
"""

from collections.abc import Mapping

from baton.runtime.telemetry import Span, start_span
from baton.system.clock import Clock
from services.gateway import instruments
from services.gateway.request import reports
from services.gateway.request.trace import RequestTrace, Stage


class Timeline:
    """The stages of one request while its attempts run."""

    def __init__(self, trace: RequestTrace, clock: Clock) -> None:
        self._trace = trace
        self._clock = clock
        self._has_begun = False
        self._lost_s = 0.0
        # From the loss of an attempt until the next token.
        self.migration: Span | None = None

    def submit(self) -> None:
        """Note that an attempt begins."""
        if self.migration is None:
            self._trace.stage = Stage.PREFILL

    def begin(self, worker_stages: Mapping[str, float]) -> bool:
        """Note that an attempt's first token is there, or that no token will come; True for the
        request's first one. `worker_stages`: the time that the worker spent, in seconds."""
        if self.migration is not None:
            self._trace.timer.mark(Stage.MIGRATION)
            instruments.GATEWAY_MIGRATION_SECONDS.observe(self._clock.now() - self._lost_s)
            self.migration.end()
            self.migration = None
        self._trace.stage = Stage.DECODE
        if self._has_begun:
            return False
        self._has_begun = True
        prefill_s = self._trace.timer.mark(Stage.PREFILL)
        reports.of_first_token(self._trace, prefill_s, worker_stages)
        explanation = self._trace.explanation
        if explanation is not None and worker_stages:
            explanation.began(self._clock.now(), worker_stages)
        return True

    def pause(self) -> None:
        """Note that an attempt is over."""
        if self.migration is not None:
            self._trace.timer.mark(Stage.MIGRATION)
        else:
            self._trace.timer.mark(Stage.DECODE if self._has_begun else Stage.PREFILL)

    def lose(self, reason: str, worker_id: str) -> bool:
        """Note that an attempt has failed and that another one follows; True when a migration
        begins with that."""
        trace = self._trace
        if self.migration is not None or not self._has_begun:
            reports.of_retry(trace, reason)
            return False
        self._lost_s = self._clock.now()
        trace.stage = Stage.MIGRATION
        self.migration = start_span(
            Stage.MIGRATION,
            parent=trace.span,
            request_id=trace.request_id,
            attributes={
                "baton.lost.epoch": trace.usage.num_attempts,
                "baton.lost.reason": reason,
                "baton.lost.worker_id": worker_id,
            },
        )
        reports.of_migration(trace, reason)
        return True

    def end(self) -> None:
        """Note that the request is over, however it ended."""
        if self.migration is not None:
            self.migration.fail("not_moved")
            self.migration.end()
            self.migration = None

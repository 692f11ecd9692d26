"""The picks of one request, one for each attempt, without the workers that have failed it."""

import asyncio
from collections.abc import Sequence

from baton.runtime.telemetry import Span
from baton.wire.failures import BatonError
from baton.wire.pick_reasons import text_of
from baton.wire.v1 import router_pb2
from services.gateway.request import reports
from services.gateway.request.deps import AttemptDeps
from services.gateway.request.incoming import Deadlines
from services.gateway.request.submission import Submission
from services.gateway.request.trace import RequestTrace, Stage
from services.gateway.routing.crash_record import Crashes, CrashRecord
from services.gateway.routing.explanations import Explanation
from services.gateway.workers.migration import MigrationLimiter

NO_WORKER_PAUSE_S = 0.5
# The request fails with the last of so many attempts.
MAX_FAILURES = 3
# A worker that drains has not failed, but a request must not migrate for ever.
MAX_PLANNED_MIGRATIONS = 8
MAX_EXCLUDED = 16
# The worker is well and computed nothing; there may be room in a moment.
REFUSALS = frozenset({"no_room", "prefill_refused"})
RETRIED_REASONS = REFUSALS | {"worker_lost", "draining", "unavailable", "handoff_failed"}
_OF_PREFILL = frozenset({"handoff_failed", "prefill_refused"})


class Retries:
    """The failures of one request after which another attempt follows, and the workers that it then
    leaves out."""

    def __init__(self) -> None:
        self._excluded: list[str] = []
        self._num_failures = 0
        self._num_planned_migrations = 0

    @property
    def excluded(self) -> Sequence[str]:
        """The workers that the next pick should avoid; the one that failed last stands last."""
        return self._excluded

    def note(self, error: BatonError, pick: router_pb2.PickResponse, *, is_guilty: bool) -> str:
        """Count the failure of an attempt; returns the worker at fault. Raises `error` when no
        other attempt follows. `is_guilty`: one more pick reports to the router that the request
        kills cores, and the router refuses it."""
        if error.reason == "draining":
            self._num_planned_migrations += 1
        elif error.reason not in REFUSALS:
            self._num_failures += 1
        most = MAX_FAILURES + 1 if is_guilty else MAX_FAILURES
        is_too_often = (
            self._num_failures >= most or self._num_planned_migrations > MAX_PLANNED_MIGRATIONS
        )
        if error.reason not in RETRIED_REASONS or is_too_often:
            raise error
        worker_id = at_fault(pick, error)
        self._excluded = [*self._excluded[1 - MAX_EXCLUDED :], worker_id]
        return worker_id


def at_fault(pick: router_pb2.PickResponse, error: BatonError) -> str:
    """The worker because of which the attempt of this pick has failed."""
    is_prefill = error.reason in _OF_PREFILL and pick.HasField("prefill")
    return pick.prefill.worker_id if is_prefill else pick.decode.worker_id


class MigrationPermit:
    """One request's permit to look for another worker: required once a worker has failed it, and
    held until its next token is there."""

    def __init__(self, limiter: MigrationLimiter) -> None:
        self._limiter = limiter
        self._is_required = False
        self._is_held = False

    def require(self) -> None:
        """Let the next pick wait for a permit, behind those that wait already: a worker failed."""
        self.release()
        self._is_required = True

    async def acquire(self, timeout_s: float) -> None:
        """Wait for the permit, if one is required. Raises DeadlineExceeded."""
        if self._is_required:
            self._is_required = False
            await self._limiter.acquire(timeout_s)
            self._is_held = True

    def release(self) -> None:
        """Give the permit back, if it is held."""
        if self._is_held:
            self._is_held = False
            self._limiter.release()


class Picks:
    """Asks routers for picks. `permit` is required once a worker has failed the request."""

    def __init__(
        self,
        submission: Submission,
        deadlines: Deadlines,
        crash_record: CrashRecord,
        deps: AttemptDeps,
        trace: RequestTrace,
    ) -> None:
        self.permit = MigrationPermit(deps.migrations)
        self._submission = submission
        self._deadlines = deadlines
        self._crash_record = crash_record
        self._crashes: Crashes = deps.links.crashes
        self._router = deps.router
        self._clock = deps.clock
        self._trace = trace
        self._explanations = deps.explanations

    async def next(
        self, excluded: Sequence[str], migration: Span | None
    ) -> router_pb2.PickResponse:
        """Pick the workers of the next attempt. Raises BatonError.

        A stream that has begun (`migration`) waits for them until its next token is due: the only
        worker may be starting again.
        """
        while True:
            try:
                return await self._pick(excluded, migration)
            except BatonError as error:
                can_wait = self._deadlines.first_token_left_s > NO_WORKER_PAUSE_S
                if error.reason != "no_worker" or migration is None or not can_wait:
                    raise
            await asyncio.sleep(NO_WORKER_PAUSE_S)

    async def _pick(
        self, excluded: Sequence[str], migration: Span | None
    ) -> router_pb2.PickResponse:
        await self.permit.acquire(self._deadlines.first_token_left_s)
        request = self._submission.pick_request()
        request.exclude_worker_ids.extend(excluded)
        request.has_begun = migration is not None
        self._crashes.ask(self._crash_record, request)
        trace = self._trace
        with trace.measure(Stage.PICK, migration) as span:
            span.set("baton.epoch", trace.usage.num_submits + 1)
            trace.attempts.pick = span
            asked_s = self._clock.now()
            context = trace.call_context(span, self._deadlines.first_token_left_s)
            pick = await self._router.pick(request, context)
            self._crashes.picked(self._crash_record, pick)
            queue_s = min(pick.queue_us / 1e6, self._clock.now() - asked_s)
            if span.is_recorded:
                span.set("baton.pick.reasons", text_of(pick.reasons))
        reports.of_queue(trace, span, asked_s, queue_s)
        self._explain(pick, queue_s)
        return pick

    def _explain(self, pick: router_pb2.PickResponse, queue_s: float) -> None:
        trace = self._trace
        if trace.explanation is None:
            trace.explanation = Explanation(
                trace.request_id,
                trace.tenant,
                trace.model_name,
                is_counted=self._submission.starts_with_a_token,
                client_request_id=trace.incoming.client_request_id,
            )
            self._explanations.keep(trace.explanation)
        trace.explanation.picked(pick, queue_s, self._clock.now())

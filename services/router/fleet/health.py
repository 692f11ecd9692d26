"""Outlier detection (decision 0022): ejects workers that answer and still fail, lets them return.

    healthy --stalled, silent or failing--> ejected --well for a while--> probation --> healthy

Three things decide: what a worker reports of its core, whether it reports at all, and the failed
requests that gateways report. Load and slowness never do. An ejected worker gets no new request,
and gateways migrate the streams that run there. On probation it gets one stream at a time, until
its core has stepped. At least half of a pool stays in use: when most of its workers seem broken,
the fault is more likely elsewhere. Silence is counted in this router's own ticks, so that a router
which was itself paused ejects no worker for it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Protocol, TypeVar

from baton.system.clock import Clock
from services.router.settings import Settings

TICK_S = 0.25
# A longer tick was a pause of this router; only so much of it counts.
MAX_TICK_S = 0.5
MAX_FAILURES = 3
# Failures that come closer together than the first count as one; all are forgotten when the last is
# older than the second.
FAILURE_PAUSE_S = 1.0
FAILURE_MEMORY_S = 10.0
PROBATION_STEPS = 8


class Cause(StrEnum):
    """Why a worker is ejected."""

    STALLED = "stalled"
    SILENT = "silent"
    FAILING = "failing"


class HealthState(Enum):
    """The state of one worker in this router."""

    HEALTHY = "healthy"
    EJECTED = "ejected"
    PROBATION = "on_probation"


@dataclass(slots=True)
class Health:
    """The state of one worker and the counts behind it; only OutlierDetector changes them."""

    state: HealthState = HealthState.HEALTHY
    cause: Cause | None = None
    silent_s: float = 0.0
    well_s: float = 0.0
    num_failures: int = 0
    failed_at: float = float("-inf")
    # The time of the worker's newest report at the last tick.
    last_report_at: float = 0.0
    # The worker's step counter at the start of its probation.
    first_step: int = 0

    def next_life(self) -> "Health":
        """The health of the next process at the same address: an outlier's begins on probation."""
        is_healthy = self.state is HealthState.HEALTHY
        return Health() if is_healthy else Health(HealthState.PROBATION)


class ObservedWorker(Protocol):
    """The part of the fleet's `Worker` that outlier detection reads."""

    health: Health

    @property
    def connected(self) -> bool: ...
    @property
    def reported_at(self) -> float: ...
    @property
    def is_stalled(self) -> bool: ...
    @property
    def step_counter(self) -> int: ...


W = TypeVar("W", bound=ObservedWorker)


class OutlierDetector:
    """Checks one pool at a time; all that it remembers is in the workers' `Health`."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock

    def failed(self, health: Health) -> None:
        """Count a request that failed at this worker; a refusal is not a failure."""
        now = self._clock.now()
        if now - health.failed_at < FAILURE_PAUSE_S:
            return
        health.num_failures = self._num_failures(health) + 1
        health.failed_at = now

    def check(
        self, pool: Sequence[W], is_fit: Callable[[W], bool], elapsed_s: float
    ) -> Iterator[W]:
        """Check all workers of a pool; yields those whose state changed.

        `is_fit` says whether a worker may be picked now. `elapsed_s` is the time since the last
        check, without pauses of this router.
        """
        for worker in pool:
            health = worker.health
            self._listen(worker, elapsed_s)
            cause = self._cause(worker)
            before = health.state
            if health.state is HealthState.EJECTED:
                self._let_return(worker, cause, elapsed_s)
            elif cause:
                num_others = len([w for w in pool if w is not worker and is_fit(w)])
                if 2 * num_others >= len(pool):
                    self._eject(health, cause)
            elif health.state is HealthState.PROBATION:
                self._try(worker)
            if health.state is not before:
                yield worker

    def _listen(self, worker: ObservedWorker, elapsed_s: float) -> None:
        health = worker.health
        is_silent = worker.connected and worker.reported_at == health.last_report_at
        health.silent_s = health.silent_s + elapsed_s if is_silent else 0.0
        health.last_report_at = worker.reported_at

    def _cause(self, worker: ObservedWorker) -> Cause | None:
        """The reason to eject the worker, if there is one.

        A lost worker is not silent: gateways notice its loss themselves.
        """
        health = worker.health
        if worker.is_stalled:
            return Cause.STALLED
        if health.silent_s >= self._settings.eject_after_s:
            return Cause.SILENT
        return Cause.FAILING if self._num_failures(health) >= MAX_FAILURES else None

    def _num_failures(self, health: Health) -> int:
        """The failures that are not forgotten."""
        is_old = self._clock.now() - health.failed_at > FAILURE_MEMORY_S
        return 0 if is_old else health.num_failures

    def _eject(self, health: Health, cause: Cause) -> None:
        health.state = HealthState.EJECTED
        health.cause = cause
        health.well_s = 0.0
        health.num_failures = 0

    def _let_return(self, worker: ObservedWorker, cause: Cause | None, elapsed_s: float) -> None:
        health = worker.health
        has_reported = worker.connected and health.silent_s < self._settings.stale_after_s
        is_well = has_reported and cause is None
        health.well_s = health.well_s + elapsed_s if is_well else 0.0
        if health.well_s >= self._settings.return_after_s:
            health.state = HealthState.PROBATION
            health.first_step = worker.step_counter

    def _try(self, worker: ObservedWorker) -> None:
        health = worker.health
        health.first_step = min(health.first_step, worker.step_counter)
        if worker.step_counter - health.first_step >= PROBATION_STEPS:
            health.state = HealthState.HEALTHY
            health.cause = None

"""Which workers are left out although they answer, and how they come back (decision 0022).

    healthy --stalled, silent or failing--> ejected --well for a while--> probation --> healthy

What a worker says of its core, whether it reports at all, and what gateways say of their requests
decide; how full or slow it is never does. An ejected worker gets nothing, and gateways move what
runs there. On probation it gets one stream at a time, until its core has stepped. At least half of
a pool stays in use, whatever its workers look like: when most seem broken, the fault is more likely
elsewhere. Silence is counted in this router's own ticks, so that a router which was itself paused
blames nobody.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar

from baton.system.clock import Clock
from services.router.settings import Settings

TICK_S = 0.25
# What a tick took longer than this was this router's own pause.
MAX_TICK_S = 0.5
MAX_FAILURES = 3
# Failures closer together than this are one; one that is the last for so long is forgotten.
FAILURE_PAUSE_S = 1.0
FAILURE_MEMORY_S = 10.0
PROBATION_STEPS = 8
# Why a worker is ejected.
CAUSES = ("stalled", "silent", "failing")


class HealthState(Enum):
    """Where a worker stands with this router."""

    HEALTHY = "healthy"
    EJECTED = "ejected"
    PROBATION = "on_probation"


@dataclass(slots=True)
class Health:
    """What is held against one worker; only the judge changes it."""

    state: HealthState = HealthState.HEALTHY
    cause: str = ""
    silent_s: float = 0.0
    well_s: float = 0.0
    num_failures: int = 0
    failed_at: float = float("-inf")
    # As of the last tick, and of the start of its probation.
    last_report_at: float = 0.0
    first_step: int = 0

    def next_life(self) -> "Health":
        """Of the process that takes this one's place."""
        is_healthy = self.state is HealthState.HEALTHY
        return Health() if is_healthy else Health(HealthState.PROBATION)


class ObservedWorker(Protocol):
    """What the judge looks at; the fleet's `Worker`."""

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
    """Judges one pool at a time; remembers nothing but what is in the workers' `Health`."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock

    def failed(self, health: Health) -> None:
        """A request failed there, and not for want of room."""
        now = self._clock.now()
        if now - health.failed_at < FAILURE_PAUSE_S:
            return
        health.num_failures = self._num_failures(health) + 1
        health.failed_at = now

    def check(
        self, pool: Sequence[W], is_fit: Callable[[W], bool], elapsed_s: float
    ) -> Iterator[W]:
        """Look at all workers of a pool, of which those that `is_fit` names may be picked now.

        `elapsed_s` is the time since the last look in which this router was awake. Yields those
        whose state changed.
        """
        for worker in pool:
            health = worker.health
            self._listen(worker, elapsed_s)
            cause = self._cause(worker)
            before = health.state
            if health.state is HealthState.EJECTED:
                self._let_return(worker, cause, elapsed_s)
            elif cause:
                num_others = sum(is_fit(other) for other in pool if other is not worker)
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

    def _cause(self, worker: ObservedWorker) -> str:
        """Why it should be ejected. One that is gone is not: gateways see that for themselves."""
        health = worker.health
        if worker.is_stalled:
            return "stalled"
        if health.silent_s >= self._settings.eject_after_s:
            return "silent"
        return "failing" if self._num_failures(health) >= MAX_FAILURES else ""

    def _num_failures(self, health: Health) -> int:
        """Those that are not forgotten."""
        is_old = self._clock.now() - health.failed_at > FAILURE_MEMORY_S
        return 0 if is_old else health.num_failures

    def _eject(self, health: Health, cause: str) -> None:
        health.state = HealthState.EJECTED
        health.cause = cause
        health.well_s = 0.0
        health.num_failures = 0

    def _let_return(self, worker: ObservedWorker, cause: str, elapsed_s: float) -> None:
        health = worker.health
        reports = worker.connected and health.silent_s < self._settings.stale_after_s
        is_well = reports and not cause
        health.well_s = health.well_s + elapsed_s if is_well else 0.0
        if health.well_s >= self._settings.return_after_s:
            health.state = HealthState.PROBATION
            health.first_step = worker.step_counter

    def _try(self, worker: ObservedWorker) -> None:
        health = worker.health
        health.first_step = min(health.first_step, worker.step_counter)
        if worker.step_counter - health.first_step >= PROBATION_STEPS:
            health.state = HealthState.HEALTHY
            health.cause = ""

"""How fast workers are taken to be: what each has measured lately, else what others have.

A worker that looks slow at something is not asked to do it, and what it measured last would stand
for ever. So a rate of prefill or handoff that was not confirmed for a while counts as unknown, and
the worker is tried again. Knows neither grpc nor picks.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from services.router.picker import Speed
from services.router.reported import ReportedLoad
from services.router.settings import Settings


@dataclass(slots=True)
class MeasuredAt:
    """When one worker's rates last changed: they do with every measurement."""

    prefill: float = 0.0
    handoff: float = 0.0
    small_handoff: float = 0.0

    def note(self, old: ReportedLoad, new: ReportedLoad, now: float) -> None:
        """A new report has come."""
        if new.prefill_tokens_per_s != old.prefill_tokens_per_s:
            self.prefill = now
        if new.handoff_bytes_per_s != old.handoff_bytes_per_s:
            self.handoff = now
        if new.handoff_s != old.handoff_s:
            self.small_handoff = now


@dataclass(frozen=True, slots=True)
class Measured:
    """One worker's figures and their age."""

    load: ReportedLoad
    at: MeasuredAt


class Speeds:
    """What is known at one moment about one pool, for workers that lack a figure of their own."""

    def __init__(
        self, pool: Iterable[Measured], others: Iterable[Measured], settings: Settings, now: float
    ) -> None:
        """`others`: workers of the same model with another role, which compute as this pool does
        as far as anybody knows."""
        self._settings = settings
        self._oldest = now - settings.speed_trust_s
        mine = list(pool)
        everybody = [*mine, *others]
        self._prefill = self._mean(mine, _prefill) or self._mean(everybody, _prefill)
        self._handoff = self._mean(mine, _handoff)
        self._small_handoff = self._mean(mine, _small_handoff)
        steps = [each.load.decode_step_s for each in mine if each.load.decode_step_s]
        self._step_s = sum(steps) / len(steps) if steps else settings.prior_decode_step_s

    def of(self, worker: Measured) -> Speed:
        """Its own fresh rates, else what others have measured lately, else the better of its old
        rate and the prior: what nobody knows is worth a try, and a small handoff costs nothing."""
        settings, load = self._settings, worker.load
        return Speed(
            self._fresh(worker, _prefill)
            or self._prefill
            or max(load.prefill_tokens_per_s, settings.prior_prefill_tokens_per_s),
            load.decode_step_s or self._step_s,
            self._fresh(worker, _handoff)
            or self._handoff
            or max(load.handoff_bytes_per_s, settings.prior_handoff_bytes_per_s),
            self._fresh(worker, _small_handoff) or self._small_handoff,
        )

    def _fresh(self, worker: Measured, rate: "_Rate") -> float:
        """0 = not measured lately."""
        per_s, measured_at = rate(worker)
        return per_s if measured_at > self._oldest else 0.0

    def _mean(self, workers: list[Measured], rate: "_Rate") -> float:
        fresh = [per_s for each in workers if (per_s := self._fresh(each, rate))]
        return sum(fresh) / len(fresh) if fresh else 0.0


_Rate = Callable[[Measured], tuple[float, float]]


def _prefill(worker: Measured) -> tuple[float, float]:
    return worker.load.prefill_tokens_per_s, worker.at.prefill


def _handoff(worker: Measured) -> tuple[float, float]:
    return worker.load.handoff_bytes_per_s, worker.at.handoff


def _small_handoff(worker: Measured) -> tuple[float, float]:
    return worker.load.handoff_s, worker.at.small_handoff

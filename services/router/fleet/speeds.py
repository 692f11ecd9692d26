"""Estimates of the workers' speeds: a worker's own recent measurements, else those of others.

A worker that looks slow is picked less, so that its last measurement could stand for ever. So a
rate of prefill or handoff that has not been measured again for `speed_trust_s` counts as unknown,
and the worker is tried again. The same holds for the wait for a step that runs. Knows neither gRPC
nor picks.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from services.router.fleet.reported import ReportedLoad
from services.router.fleet.views import Speed
from services.router.settings import Settings


@dataclass(slots=True)
class MeasuredAt:
    """The times at which one worker's rates last changed: they do with every measurement."""

    prefill: float = 0.0
    handoff: float = 0.0
    small_handoff: float = 0.0
    step_wait: float = 0.0

    def note(self, old: ReportedLoad, new: ReportedLoad, now: float) -> None:
        """Take in a new report: a rate that differs was measured again."""
        if new.prefill_tokens_per_s != old.prefill_tokens_per_s:
            self.prefill = now
        if new.handoff_bytes_per_s != old.handoff_bytes_per_s:
            self.handoff = now
        if new.handoff_s != old.handoff_s:
            self.small_handoff = now
        if new.step_wait_s != old.step_wait_s:
            self.step_wait = now


class Measured(NamedTuple):
    """One worker's figures and the times at which they were measured."""

    load: ReportedLoad
    at: MeasuredAt


class Means(NamedTuple):
    """The mean rates of a pool, for its workers without a recent one of their own; 0 = unknown."""

    prefill: float
    step_s: float
    handoff: float
    small_handoff: float
    step_wait: float


def means_of(
    pool: Sequence[Measured], others: Iterable[Measured], settings: Settings, now: float
) -> Means:
    """Return the means of the rates that were measured recently.

    `others` are the workers of the same model with the other role: until the pool has measured its
    own, they count as equally fast at prefill.
    """
    oldest = now - settings.speed_trust_s
    steps = [each.load.decode_step_s for each in pool if each.load.decode_step_s]
    return Means(
        prefill=_mean(pool, _prefill, oldest) or _mean([*pool, *others], _prefill, oldest),
        step_s=sum(steps) / len(steps) if steps else settings.prior_decode_step_s,
        handoff=_mean(pool, _handoff, oldest),
        small_handoff=_mean(pool, _small_handoff, oldest),
        step_wait=_mean(pool, _step_wait, oldest),
    )


class Speeds:
    """The rates of one pool at one moment."""

    def __init__(self, means: Means, settings: Settings, now: float) -> None:
        self._means = means
        self._settings = settings
        self._oldest = now - settings.speed_trust_s

    def of(self, worker: Measured) -> Speed:
        """The worker's own recent rates, else the mean of the others' recent rates, else the better
        of its old rate and the prior: an unknown rate is worth a try. A small handoff or a wait
        that no worker has measured is 0."""
        settings, means, oldest = self._settings, self._means, self._oldest
        load, at = worker
        prefill = (at.prefill > oldest and load.prefill_tokens_per_s) or means.prefill
        return Speed(
            prefill or max(load.prefill_tokens_per_s, settings.prior_prefill_tokens_per_s),
            load.decode_step_s or means.step_s,
            (at.handoff > oldest and load.handoff_bytes_per_s)
            or means.handoff
            or max(load.handoff_bytes_per_s, settings.prior_handoff_bytes_per_s),
            (at.small_handoff > oldest and load.handoff_s) or means.small_handoff,
            (at.step_wait > oldest and load.step_wait_s) or means.step_wait,
            bool(prefill),
        )


_Rate = Callable[[Measured], tuple[float, float]]


def _fresh(worker: Measured, rate: _Rate, oldest: float) -> float:
    """The worker's rate; 0 when it was not measured recently."""
    per_s, measured_at = rate(worker)
    return per_s if measured_at > oldest else 0.0


def _mean(workers: Iterable[Measured], rate: _Rate, oldest: float) -> float:
    fresh = [per_s for each in workers if (per_s := _fresh(each, rate, oldest))]
    return sum(fresh) / len(fresh) if fresh else 0.0


def _prefill(worker: Measured) -> tuple[float, float]:
    return worker.load.prefill_tokens_per_s, worker.at.prefill


def _handoff(worker: Measured) -> tuple[float, float]:
    return worker.load.handoff_bytes_per_s, worker.at.handoff


def _small_handoff(worker: Measured) -> tuple[float, float]:
    return worker.load.handoff_s, worker.at.small_handoff


def _step_wait(worker: Measured) -> tuple[float, float]:
    return worker.load.step_wait_s, worker.at.step_wait

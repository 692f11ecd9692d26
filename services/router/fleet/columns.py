"""The figures of one pool as columns of numbers, for picks in large pools (decision 0040).

A worker's row is written when a report, a slot lease or its health changes it, never by a pick.
What changes by time alone is worked out in a pick for all rows at once: silence, and measured rates
that have become old. At a hundred rows a call of numpy costs more than its work, so nothing is
worked out that has not changed. Decides nothing.
"""

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, auto
from functools import lru_cache, partial, reduce
from operator import or_

import numpy as np
from numpy.typing import NDArray

from services.router.fleet.prefix_index import PrefixIndex, numbers_of
from services.router.fleet.speeds import Means
from services.router.fleet.worker import Worker
from services.router.settings import Settings

Column = NDArray[np.float64]
Mask = NDArray[np.bool_]


class Figure(IntEnum):
    """The columns, in the order of `_leased` and `_own`."""

    # Those that slot leases change.
    BLOCKS_FREE = 0
    BLOCKS_TO_PROMISE = auto()  # at most, to a request whose prompt another worker computes
    BATCH_SLOTS_FREE = auto()
    EXTRA_SLOTS_FREE = auto()  # in a full batch, for quiet tenants
    BATCH_FACTOR = auto()  # so many times as long as an idle step the next ones take
    QUEUED_TOKENS = auto()
    # Those that they do not.
    REPORTED_AT = auto()  # -inf: it must not be picked whatever it reports
    NUM_BLOCKS = auto()
    BATCH_SLOTS = auto()
    NUM_RUNNING = auto()
    MEASURED_FACTOR = auto()  # and the measured one took
    CHUNK_TOKENS = auto()


class Rate(IntEnum):
    """The measured rates, in the order in which they end a row; then come their times."""

    PREFILL_PER_S = 0
    STEP_S = auto()
    HANDOFF_PER_S = auto()
    SMALL_HANDOFF_S = auto()
    STEP_WAIT_S = auto()


_OUT = -math.inf
# So few workers of a step are written one by one.
_FEW_BITS = 4
_RATES = slice(len(Figure), len(Figure) + len(Rate))
_TIMES = slice(_RATES.stop, _RATES.stop + len(Rate))


# With more changed rows than this, all are looked at again.
_MAX_CHANGED = 8


class _FreshRates:
    """The rates of a pool that were measured recently: which there are, their numbers and sums.

    `is_there` has a row for each rate.
    """

    def __init__(self, figures: Column) -> None:
        self._figures = figures
        self.is_there: Mask = np.zeros_like(figures[_RATES], dtype=bool)
        self.counts = [0] * len(Rate)
        self.sums = [0.0] * len(Rate)
        self._each: list[list[float]] = []
        # The time of the oldest measurement that counts.
        self._first_at = -math.inf
        self._changed: set[int] = set()

    def note(self, row: int) -> None:
        """Look at this row again."""
        self._changed.add(row)

    def look(self, oldest: float) -> None:
        """Count the rates that were measured after `oldest`."""
        if oldest >= self._first_at or len(self._changed) > _MAX_CHANGED:
            self._look_at_all(oldest)
        else:
            for row in self._changed:
                self._look_at(row, oldest)
        self._changed.clear()

    def _look_at_all(self, oldest: float) -> None:
        rates, times = self._figures[_RATES], self._figures[_TIMES]
        self.is_there = (times > oldest) & (rates > 0)
        fresh = np.where(self.is_there, rates, 0.0)
        self.counts, self.sums = self.is_there.sum(axis=1).tolist(), fresh.sum(axis=1).tolist()
        self._each = fresh.T.tolist()
        self._first_at = float(times[self.is_there].min(initial=math.inf))

    def _look_at(self, row: int, oldest: float) -> None:
        figures, each = self._figures[_RATES.start :, row].tolist(), self._each[row]
        for rate, at in enumerate(figures[len(Rate) :]):
            value = figures[rate] if at > oldest else 0.0
            if value == each[rate]:
                continue
            if value:
                self._first_at = min(self._first_at, at)
            if bool(value) != bool(each[rate]):
                self.is_there[rate, row] = bool(value)
                self.counts[rate] += 1 if value else -1
            self.sums[rate] += value - each[rate]
            each[rate] = value

    def mean(self, rate: Rate) -> float:
        """The mean over the workers that have it; 0 without one."""
        return self.sums[rate] / self.counts[rate] if self.counts[rate] else 0.0


@dataclass(slots=True)
class PoolRates:
    """Each worker's rates at one moment, as `Speeds.of` has them, and their means.

    One number stands for all workers where none has measured its own.
    """

    means: Means
    _figures: Column
    _fresh: _FreshRates
    _settings: Settings

    def prefill_per_s(self) -> Column | float:
        prior = self._settings.prior_prefill_tokens_per_s
        return self._of(Rate.PREFILL_PER_S, self.means.prefill, prior)

    def own_prefill_per_s(self) -> Column:
        """The workers' own rates of prefill, also old ones; 0 = not measured."""
        own: Column = self._figures[_RATES.start + Rate.PREFILL_PER_S]
        return own

    def step_s(self) -> Column | float:
        return self._of(Rate.STEP_S, self.means.step_s)

    def handoff_per_s(self) -> Column | float:
        prior = self._settings.prior_handoff_bytes_per_s
        return self._of(Rate.HANDOFF_PER_S, self.means.handoff, prior)

    def small_handoff_s(self) -> Column | float:
        return self._of(Rate.SMALL_HANDOFF_S, self.means.small_handoff)

    def step_wait_s(self) -> Column | float:
        return self._of(Rate.STEP_WAIT_S, self.means.step_wait)

    def _of(self, rate: Rate, mean: float, prior: float = 0.0) -> Column | float:
        """The workers' own rates, else the mean, else the better of the old one and the prior."""
        own: Column = self._figures[_RATES.start + rate]
        if self._fresh.counts[rate] == len(own):
            return own
        if not mean and prior:
            return np.maximum(own, prior)
        if not self._fresh.counts[rate]:
            return mean
        each: Column = np.where(self._fresh.is_there[rate], own, mean)
        return each


class PoolColumns:
    """One pool's figures, a row for each worker in the pool's order."""

    def __init__(self, workers: Sequence[Worker], settings: Settings) -> None:
        self.shapes = {worker.registration.shape for worker in workers}
        # Which rows are in which zone.
        self.zones = _zones(workers)
        self._workers = workers
        self._settings = settings
        self.least_blocks = min(worker.registration.num_blocks for worker in workers)
        self.least_batch_slots = min(worker.registration.max_num_seqs for worker in workers)
        self._figures = np.zeros((_TIMES.stop, len(workers)))
        self._columns = list(self._figures)
        self._fresh = _FreshRates(self._figures)
        # When leases of a row end next, and the same in order; what is told twice does no harm.
        self._next_expiry: dict[int, float] = {}
        self._expiries: list[tuple[float, int]] = []
        # Rows of which leases have come or gone since they were written.
        self._leases_changed: set[int] = set()
        self._numbers_of: tuple[PrefixIndex | None, int] = (None, -1)
        self._numbers = np.zeros(0, dtype=int)
        for row in range(len(workers)):
            self.write(row)

    def cached_blocks(self, index: PrefixIndex, depths: Column) -> Column:
        """How many of a prompt's first blocks each worker has cached, by `depths_of`."""
        if self._numbers_of != (index, index.version):
            self._numbers_of = (index, index.version)
            numbers = (index.number(worker.endpoint) for worker in self._workers)
            # -1 is the last place: it is for workers without entries.
            self._numbers = np.array([-1 if n is None else n for n in numbers])
        cached: Column = depths[self._numbers]
        return cached

    def __len__(self) -> int:
        return len(self._workers)

    def __getitem__(self, figure: Figure) -> Column:
        if self._leases_changed:
            self._write_leases()
        return self._columns[figure]

    def write(self, row: int) -> None:
        """Take over the worker's figures: something has changed them."""
        self._fresh.note(row)
        worker = self._workers[row]
        self._figures[:, row] = (*self._leased(worker), *self._own(worker))
        self._note_expiry(row)

    def on_leases(self, row: int) -> Callable[[], None]:
        """Return what notes that the worker's slot leases have changed. They are taken over when
        the row is read: a peer's news and their end change some rows many times."""
        return partial(self._leases_changed.add, row)

    def _write_leases(self) -> None:
        for row in self._leases_changed:
            self._figures[: Figure.REPORTED_AT, row] = self._leased(self._workers[row])
            self._note_expiry(row)
        self._leases_changed.clear()

    def _note_expiry(self, row: int) -> None:
        next_expiry = self._workers[row].leases.next_expiry
        if next_expiry < self._next_expiry.get(row, math.inf):
            self._next_expiry[row] = next_expiry
            heapq.heappush(self._expiries, (next_expiry, row))

    def heard(self, row: int, now: float) -> None:
        """Note that the worker is alive."""
        if self._figures[Figure.REPORTED_AT, row] != _OUT:
            self._figures[Figure.REPORTED_AT, row] = now

    def unfit(self, now: float) -> Mask:
        """The workers that must not be picked now."""
        is_unfit: Mask = now - self._columns[Figure.REPORTED_AT] > self._settings.stale_after_s
        return is_unfit

    def is_in(self) -> Mask:
        """The workers that may be picked, unless they are silent."""
        is_in: Mask = self._figures[Figure.REPORTED_AT] != _OUT
        return is_in

    def expire_leases(self, now: float) -> None:
        """End the slot leases whose time is over."""
        for row in self._leases_changed:
            self._note_expiry(row)
        while self._expiries and self._expiries[0][0] <= now:
            _, row = heapq.heappop(self._expiries)
            self._next_expiry.pop(row, None)
            self._workers[row].leases.expire(now)
            self._note_expiry(row)

    def rates(self, others: "PoolColumns | None", now: float) -> PoolRates:
        """The rates of now: a worker's own recent ones, else the pool's, as in `speeds.py`."""
        fresh, settings = self._fresh, self._settings
        oldest = now - settings.speed_trust_s
        fresh.look(oldest)
        prefill = fresh.mean(Rate.PREFILL_PER_S)
        if not prefill and others is not None:
            others._fresh.look(oldest)
            prefill = others._fresh.mean(Rate.PREFILL_PER_S)
        means = Means(
            prefill,
            fresh.mean(Rate.STEP_S) or settings.prior_decode_step_s,
            fresh.mean(Rate.HANDOFF_PER_S),
            fresh.mean(Rate.SMALL_HANDOFF_S),
            fresh.mean(Rate.STEP_WAIT_S),
        )
        return PoolRates(means, self._figures, fresh, settings)

    def _leased(self, worker: Worker) -> tuple[float, ...]:
        """The worker's figures that its slot leases change, in the order of `Figure`."""
        room, settings = worker.room(), self._settings
        # A promise may exceed the cap only when it is the only one (decision 0029).
        num_to_promise = settings.promise_cap * room.num_blocks - room.num_blocks_promised
        is_capped = room.num_blocks_promised and num_to_promise < room.num_blocks_free
        return (
            room.num_blocks_free,
            num_to_promise if is_capped else room.num_blocks_free,
            room.num_batch_slots_free,
            room.num_extra_slots_free,
            1 + worker.num_sequences / settings.batch_doubling,
            worker.num_queued_prefill_tokens,
        )

    def _own(self, worker: Worker) -> tuple[float, ...]:
        """The worker's other figures, then its rates and their times."""
        load, at, registration = worker.load, worker.measured_at, worker.registration
        return (
            worker.reported_at if worker.connected and worker.fault is None else _OUT,
            registration.num_blocks,
            registration.max_num_seqs,
            load.num_running,
            1 + load.num_running / self._settings.batch_doubling,
            load.chunk_tokens,
            load.prefill_tokens_per_s,
            load.decode_step_s,
            load.handoff_bytes_per_s,
            load.handoff_s,
            load.step_wait_s,
            at.prefill,
            math.inf,  # a step's time never becomes old
            at.handoff,
            at.small_handoff,
            at.step_wait,
        )


def depths_of(index: PrefixIndex, steps: Sequence[tuple[int, int]]) -> Column:
    """The blocks of a prompt by the number of the worker, by the index's `steps`; the last is 0."""
    depths = np.zeros(index.num_bits + 1)
    # Many workers end where a few others go on: those that hold so many blocks or more are often
    # the same ones, as with a common system prompt.
    holding = reduce(or_, (bits for bits, _ in steps), 0)
    for bits, depth in steps:
        if bits.bit_count() <= _FEW_BITS:
            depths[list(numbers_of(bits))] = depth
        else:
            depths[_flags(holding, len(depths))] = depth
        holding ^= bits
    return depths


@lru_cache(maxsize=256)
def _flags(bits: int, num_flags: int) -> Mask:
    """The bits as a column, the lowest first."""
    little = bits.to_bytes(num_flags // 8 + 1, "little")
    flags = np.unpackbits(np.frombuffer(little, np.uint8), bitorder="little")
    is_set: Mask = flags[:num_flags] != 0
    return is_set


def _zones(workers: Sequence[Worker]) -> Mapping[str, Mask]:
    names = [worker.registration.zone for worker in workers]
    return {zone: np.array([name == zone for name in names]) for zone in dict.fromkeys(names)}

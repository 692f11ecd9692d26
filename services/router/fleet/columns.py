"""The figures of one pool as columns of numbers, for picks in large pools (decision 0040).

A worker's row is written when a report, a slot lease or its health changes it, never by a pick.
What changes by time alone is worked out in a pick for all rows at once: silence, and measured rates
that have become old. Decides nothing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, auto

import numpy as np
from numpy.typing import NDArray

from services.router.fleet.prefix_index import PrefixIndex
from services.router.fleet.speeds import Means
from services.router.fleet.worker import Worker
from services.router.settings import Settings

Column = NDArray[np.float64]
Mask = NDArray[np.bool_]


class Figure(IntEnum):
    """The columns, in the order of `_row`."""

    IS_OUT = 0
    REPORTED_AT = auto()
    NUM_BLOCKS = auto()
    BLOCKS_FREE = auto()
    BLOCKS_PROMISED = auto()
    BATCH_SLOTS = auto()
    BATCH_SLOTS_FREE = auto()
    NUM_RUNNING = auto()
    NUM_SEQUENCES = auto()
    QUEUED_TOKENS = auto()
    CHUNK_TOKENS = auto()


class Rate(IntEnum):
    """The measured rates, in the order in which they end a row; then come their times."""

    PREFILL_PER_S = 0
    STEP_S = auto()
    HANDOFF_PER_S = auto()
    SMALL_HANDOFF_S = auto()


_RATES = slice(len(Figure), len(Figure) + len(Rate))
_TIMES = slice(_RATES.stop, _RATES.stop + len(Rate))


@dataclass(frozen=True, slots=True)
class PoolRates:
    """Each worker's rates at one moment, as `Speeds.of` has them, and their means."""

    means: Means
    _each: Column

    def __getitem__(self, rate: Rate) -> Column:
        column: Column = self._each[rate]
        return column


class PoolColumns:
    """One pool's figures, a row for each worker in the pool's order."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.shapes = {worker.registration.shape for worker in workers}
        # Which rows are in which zone.
        self.zones = _zones(workers)
        self._workers = workers
        self._figures = np.zeros((_TIMES.stop, len(workers)))
        self._leased: set[int] = set()
        self._numbers_of: tuple[PrefixIndex | None, int] = (None, -1)
        self._numbers = np.zeros(0, dtype=int)
        for row in range(len(workers)):
            self.write(row)

    def cached_blocks(self, index: PrefixIndex, steps: Sequence[tuple[int, int]]) -> Column:
        """How many of a prompt's first blocks each worker has cached, by the index's `steps`."""
        if self._numbers_of != (index, index.version):
            self._numbers_of = (index, index.version)
            numbers = (index.number(worker.endpoint) for worker in self._workers)
            # -1 is the last place: it is for workers without entries.
            self._numbers = np.array([-1 if n is None else n for n in numbers])
        depths = np.zeros(index.num_bits + 1)
        for bits, depth in steps:
            if bits & (bits - 1):
                little = bits.to_bytes(index.num_bits // 8 + 1, "little")
                flags = np.unpackbits(np.frombuffer(little, np.uint8), bitorder="little")
                depths[flags[: len(depths)] != 0] = depth
            else:
                depths[bits.bit_length() - 1] = depth
        cached: Column = depths[self._numbers]
        return cached

    def __len__(self) -> int:
        return len(self._workers)

    def __getitem__(self, figure: Figure) -> Column:
        column: Column = self._figures[figure]
        return column

    def write(self, row: int) -> None:
        """Take over the worker's figures: something has changed them."""
        worker = self._workers[row]
        (self._leased.add if len(worker.leases) else self._leased.discard)(row)
        self._figures[:, row] = _row(worker)

    def heard(self, row: int, now: float) -> None:
        """Note that the worker is alive."""
        self._figures[Figure.REPORTED_AT, row] = now

    def expire_leases(self, now: float) -> None:
        """End the slot leases whose time is over."""
        for row in list(self._leased):
            self._workers[row].leases.expire(now)

    def rates(self, others: "PoolColumns | None", settings: Settings, now: float) -> PoolRates:
        """The rates of now: a worker's own recent ones, else the pool's, as in `speeds.py`."""
        fresh, is_fresh = self._fresh(settings, now)
        prefill, step_s, handoff, small = _means(fresh, is_fresh)
        if not prefill and others is not None:
            prefill = _means(*others._fresh(settings, now))[Rate.PREFILL_PER_S]
        step_s = step_s or settings.prior_decode_step_s
        means = np.array(((prefill,), (step_s,), (handoff,), (small,)))
        each = np.where(is_fresh, fresh, means)
        old = self._figures[_RATES]
        if not prefill:
            rate, prior = Rate.PREFILL_PER_S, settings.prior_prefill_tokens_per_s
            each[rate] = np.maximum(old[rate], prior)
        if not handoff:
            rate, prior = Rate.HANDOFF_PER_S, settings.prior_handoff_bytes_per_s
            each[rate] = np.maximum(old[rate], prior)
        return PoolRates(Means(prefill, step_s, handoff, small), each)

    def _fresh(self, settings: Settings, now: float) -> tuple[Column, Mask]:
        """The rates without those whose last measurement is too old, and which there are."""
        is_fresh = self._figures[_TIMES] > now - settings.speed_trust_s
        fresh = self._figures[_RATES] * is_fresh
        return fresh, fresh > 0


def _row(worker: Worker) -> tuple[float, ...]:
    """The worker's figures, in the order of `Figure`."""
    load, at, room = worker.load, worker.measured_at, worker.room()
    return (
        not worker.connected or worker.fault is not None,
        worker.reported_at,
        room.num_blocks,
        room.num_blocks_free,
        room.num_blocks_promised,
        room.num_batch_slots,
        room.num_batch_slots_free,
        load.num_running,
        worker.num_sequences,
        worker.num_queued_prefill_tokens,
        load.chunk_tokens,
        load.prefill_tokens_per_s,
        load.decode_step_s,
        load.handoff_bytes_per_s,
        load.handoff_s,
        at.prefill,
        math.inf,  # a step's time never becomes old
        at.handoff,
        at.small_handoff,
    )


def _zones(workers: Sequence[Worker]) -> Mapping[str, Mask]:
    names = [worker.registration.zone for worker in workers]
    return {zone: np.array([name == zone for name in names]) for zone in dict.fromkeys(names)}


def _means(fresh: Column, is_fresh: Mask) -> list[float]:
    """The mean of each rate over the workers that have it; 0 without one."""
    counts = np.maximum(is_fresh.sum(axis=1), 1)
    means: list[float] = (fresh.sum(axis=1) / counts).tolist()
    return means

"""The figures of one pool as columns of numbers, for picks in large pools (decision 0040).

A worker's row is written when a report, a slot lease or its health changes it, never by a pick.
What changes by time alone is worked out in a pick for all rows at once: silence, and measured rates
that have become old. Decides nothing.
"""

from collections.abc import Sequence
from enum import IntEnum, auto

import numpy as np
from numpy.typing import NDArray

from services.router.prefix_index import PrefixIndex
from services.router.settings import Settings
from services.router.speeds import Means
from services.router.worker import Worker

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
    PREFILL_PER_S = auto()
    PREFILL_AT = auto()
    STEP_S = auto()
    HANDOFF_PER_S = auto()
    HANDOFF_AT = auto()
    SMALL_HANDOFF_S = auto()
    SMALL_HANDOFF_AT = auto()


class PoolColumns:
    """One pool's figures, a row for each worker in the pool's order."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.shapes = {worker.registration.shape for worker in workers}
        self._workers = workers
        self._figures = np.zeros((len(Figure), len(workers)))
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

    def fresh(self, figure: Figure, measured_at: Figure, oldest: float) -> Column:
        """The measured rates; 0 where the last measurement is too old or there is none."""
        return np.where(self[measured_at] > oldest, self[figure], 0.0)

    def means(self, others: "PoolColumns | None", settings: Settings, now: float) -> Means:
        """The means of the pool's rates, as `speeds.py` takes them of workers one by one."""
        oldest = now - settings.speed_trust_s
        prefill = _mean(self.fresh(Figure.PREFILL_PER_S, Figure.PREFILL_AT, oldest))
        if not prefill and others is not None:
            prefill = _mean(others.fresh(Figure.PREFILL_PER_S, Figure.PREFILL_AT, oldest))
        small = self.fresh(Figure.SMALL_HANDOFF_S, Figure.SMALL_HANDOFF_AT, oldest)
        return Means(
            prefill=prefill,
            step_s=_mean(self[Figure.STEP_S]) or settings.prior_decode_step_s,
            handoff=_mean(self.fresh(Figure.HANDOFF_PER_S, Figure.HANDOFF_AT, oldest)),
            small_handoff=_mean(small),
        )


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
        at.prefill,
        load.decode_step_s,
        load.handoff_bytes_per_s,
        at.handoff,
        load.handoff_s,
        at.small_handoff,
    )


def _mean(rates: Column) -> float:
    """The mean of those that are known."""
    num_known = np.count_nonzero(rates)
    return float(rates.sum()) / num_known if num_known else 0.0

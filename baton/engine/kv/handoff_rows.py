"""The rows of the shared pool in which the front finds blocks that are handed over.

Where the engine computes in the shared pool itself a block's row is the block, and nothing is
counted or copied. A runner with a cache of its own has a *staging ring* in the shared pool instead,
of fewer rows than the cache has blocks (decision 0077). A sequence leases a row for each block that
travels, all at once or none: a prefill before it starts, a remote sequence with its promise. So
none ever waits for rows while it has some. Knows no tokens and no queues.
"""

from collections import deque
from collections.abc import Sequence, Set

from baton.engine.protocol.runner import StagingRunner
from baton.system.byte_size import format_bytes
from baton.wire.kv_spec import KVSpec

# A ring is such a part of the cache, and not more than so many bytes, if nobody says how large.
DEFAULT_PART = 4
MAX_DEFAULT_BYTES = 16 * 2**30


def num_ring_rows(spec: KVSpec, num_blocks: int, max_model_len: int, num_bytes: int | None) -> int:
    """The rows of a staging ring beside a cache of `num_blocks`; `num_bytes` None = choose.

    One sequence of the longest length has room in it. Raises ValueError when that needs more.
    """
    longest = spec.num_blocks_for(max_model_len)
    if num_bytes is None:
        part = min(num_blocks * spec.row_bytes // DEFAULT_PART, MAX_DEFAULT_BYTES)
        return min(num_blocks, max(longest, part // spec.row_bytes))
    num_rows = min(num_blocks, num_bytes // spec.row_bytes)
    if num_rows < longest:
        raise ValueError(
            f"a staging ring of {format_bytes(num_bytes)} holds {num_rows * spec.block_size} "
            f"tokens, one sequence may have {max_model_len}: raise --staging-memory to "
            f"{longest * spec.row_bytes} bytes or lower --max-model-len"
        )
    return num_rows


class RowLeases:
    """Which sequence has which rows of a staging ring."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self._free = deque(range(num_rows))
        self._leased: dict[int, list[int]] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def holders(self) -> Set[int]:
        """The sequences that have a lease."""
        return self._leased.keys()

    def can_lease(self, num_rows: int) -> bool:
        return num_rows <= len(self._free)

    def lease(self, seq_id: int, num_rows: int) -> bool:
        """Give a sequence so many rows or none; returns whether it has them now."""
        if seq_id in self._leased:
            return len(self._leased[seq_id]) == num_rows
        if num_rows > len(self._free):
            return False
        if num_rows:
            self._leased[seq_id] = [self._free.popleft() for _ in range(num_rows)]
        return True

    def rows_of(self, seq_id: int) -> list[int]:
        """The rows of a sequence, in the order of its blocks that travel."""
        return self._leased.get(seq_id, [])

    def free(self, seq_id: int) -> None:
        """Give back what the sequence has leased, if anything."""
        self._free += self._leased.pop(seq_id, ())

    def check_integrity(self) -> None:
        """Assert that each row is free, or leased to one sequence."""
        leased = [row for rows in self._leased.values() for row in rows]
        assert sorted([*self._free, *leased]) == list(range(self.num_rows)), "rows leaked"


class HandoffRows:
    """Those of one engine: of its cache, or of a ring with the copies between the two."""

    def __init__(self, runner: StagingRunner | None = None, num_rows: int = 0) -> None:
        """A `runner` has a cache of its own, and hands over through a ring of `num_rows`."""
        self.leases = RowLeases(0 if runner is None else num_rows)
        self._runner = runner

    @property
    def are_blocks(self) -> bool:
        """A block's row is the block."""
        return self._runner is None

    def can_lease(self, num_rows: int) -> bool:
        """A sequence can have as many rows now."""
        return self.are_blocks or self.leases.can_lease(num_rows)

    def lease(self, seq_id: int, num_rows: int) -> bool:
        """Give a sequence the rows in which its blocks will travel, or none; returns whether it has
        them now."""
        return self.are_blocks or self.leases.lease(seq_id, num_rows)

    def rows_of(self, seq_id: int, block_ids: list[int]) -> list[int]:
        """Where the front finds `block_ids`, those of the sequence that travel."""
        return block_ids if self.are_blocks else self.leases.rows_of(seq_id)

    def copy_out(self, seq_id: int, first: int, block_ids: Sequence[int]) -> None:
        """Begin to copy final blocks into the sequence's rows, from row number `first` on."""
        if self._runner is not None and block_ids:
            rows = self.leases.rows_of(seq_id)[first : first + len(block_ids)]
            self._runner.download(block_ids, rows)

    def copy_in(self, seq_id: int, block_ids: Sequence[int]) -> None:
        """Copy the sequence's rows into its blocks. It needs its rows no longer."""
        if self._runner is not None and block_ids:
            self._runner.upload(self.leases.rows_of(seq_id), block_ids)
        self.leases.free(seq_id)

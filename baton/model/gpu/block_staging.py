"""Whole blocks between a device's cache and the staging ring that is shared with the front.

What decode workers are sent and what prefill workers hand over lies in rows of the ring; attention
reads the device's cache. In between are slots, each with rows on the device and page-locked rows of
the host. Only the computing stream touches the cache: it gathers what leaves into a slot when the
step has written it, and scatters what came before a step reads it. So a block may be used again at
once, whatever is under way. Between the two halves of a slot a stream of its own copies, while the
next step computes; the owner polls for the copies that ended. How a block lies in the cache is
known to the cache alone: a row has its bytes in the order that travels.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import torch

from baton.model.tensors.kv_pool import KVPool
from baton.model.tensors.side_stream import Copy, SideStream

NUM_SLOTS = 16
SLOT_BYTES = 16 * 2**20  # on the device, and as much of page-locked memory


class BlockCache(Protocol):
    """A cache on a device, block by block. `ids` are int64 and on that device, and so are rows."""

    num_blocks: int
    device: torch.device

    def gather(self, ids: torch.Tensor, rows: torch.Tensor) -> None:
        """Copy blocks into rows."""

    def scatter(self, rows: torch.Tensor, ids: torch.Tensor) -> None:
        """Copy rows into blocks."""


class PoolBlocks:
    """The blocks of a KVPool, which are rows as they are."""

    def __init__(self, pool: KVPool) -> None:
        # Rows are gathered and scattered number by number: in the widest that there are.
        number = torch.int64 if pool.spec.row_bytes % 8 == 0 else torch.uint8
        self.num_blocks, self.device = pool.num_blocks, pool.rows.device
        self._blocks = pool.rows.view(number)

    def gather(self, ids: torch.Tensor, rows: torch.Tensor) -> None:
        """As `BlockCache.gather`."""
        torch.index_select(self._blocks, 0, ids, out=rows)

    def scatter(self, rows: torch.Tensor, ids: torch.Tensor) -> None:
        """As `BlockCache.scatter`."""
        self._blocks.index_copy_(0, ids, rows)

    def rows_of(self, ring: memoryview) -> torch.Tensor:
        """A ring of such rows."""
        number = self._blocks.dtype
        return torch.frombuffer(ring, dtype=number).view(-1, self._blocks.shape[1])


class _Slot:
    """Some rows and the blocks that they hold, on both sides."""

    def __init__(self, num_rows: int, ring: torch.Tensor, device: torch.device) -> None:
        is_locked = device.type == "cuda"
        shape, ids, rows = (num_rows, *ring.shape[1:]), torch.int64, ring.dtype
        self.host_rows = torch.empty(shape, dtype=rows, pin_memory=is_locked)
        self.host_ids = torch.empty(num_rows, dtype=ids, pin_memory=is_locked)
        self.rows = torch.empty(shape, dtype=rows, device=device)
        self.ids = torch.empty(num_rows, dtype=ids, device=device)


class _UnderWay(NamedTuple):
    copy: Copy
    slot: _Slot
    # The rows of the ring that they are for; None = they go to the device.
    leaving: torch.Tensor | None


class BlockStaging:
    """Between a cache and a ring, whose rows `[num_rows, ...]` are as long as the cache's."""

    def __init__(self, cache: BlockCache, ring: torch.Tensor, stream: SideStream) -> None:
        row_bytes = ring[0].nbytes
        self._cache = cache
        self._ring = ring
        self._stream = stream
        self._slot_rows = max(1, min(SLOT_BYTES // row_bytes, cache.num_blocks))
        self._free = [_Slot(self._slot_rows, ring, cache.device) for _ in range(NUM_SLOTS)]
        self._under_way: deque[_UnderWay] = deque()
        self.num_begun = 0
        self._num_ended = 0

    @classmethod
    def of_pool(cls, pool: KVPool, ring: memoryview, stream: SideStream) -> "BlockStaging":
        """Between a pool on a device and a ring of rows as long as its blocks."""
        blocks = PoolBlocks(pool)
        return cls(blocks, blocks.rows_of(ring), stream)

    def upload(self, rows: Sequence[int], block_ids: Sequence[int]) -> None:
        """From rows of the ring into blocks: whatever computes from now on finds them there.

        The rows are read when this returns.
        """
        for from_rows, ids in self._parts(rows, block_ids):
            slot, size = self._take_slot(), len(ids)
            for row, content in zip(from_rows.tolist(), slot.host_rows, strict=False):
                content.copy_(self._ring[row])
            slot.host_ids[:size] = ids
            here, there = slot.rows[:size], slot.ids[:size]
            copy = self._stream.begin(
                [(here, slot.host_rows[:size]), (there, slot.host_ids[:size])]
            )
            self._stream.hold_back(copy)
            self._cache.scatter(here, there)
            self._under_way.append(_UnderWay(copy, slot, None))

    def download(self, block_ids: Sequence[int], rows: Sequence[int]) -> None:
        """Begin to copy blocks, as the steps so far leave them, into rows of the ring.

        Waits for older copies when there are more blocks than the slots have room for.
        """
        for to_rows, ids in self._parts(rows, block_ids):
            slot, size = self._take_slot(), len(ids)
            slot.host_ids[:size] = ids
            here, there = slot.rows[:size], slot.ids[:size]
            there.copy_(slot.host_ids[:size], non_blocking=True)
            self._cache.gather(there, here)
            copy = self._stream.begin([(slot.host_rows[:size], here)])
            self._under_way.append(_UnderWay(copy, slot, to_rows))
            self.num_begun += 1

    def poll(self) -> int:
        """The number that have ended, of `num_begun`: in order, the first ones. Does not wait."""
        while self._under_way and self._under_way[0].copy.has_ended():
            self._end_oldest()
        return self._num_ended

    def _take_slot(self) -> _Slot:
        if not self._free:
            self.poll()
        if not self._free:
            self._under_way[0].copy.wait()
            self._end_oldest()
        return self._free.pop()

    def _end_oldest(self) -> None:
        _, slot, leaving = self._under_way.popleft()
        if leaving is not None:
            for row, content in zip(leaving.tolist(), slot.host_rows, strict=False):
                self._ring[row].copy_(content)
            self._num_ended += 1
        self._free.append(slot)

    def _parts(
        self, rows: Sequence[int], block_ids: Sequence[int]
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Rows and their blocks, so many at a time as a slot holds."""
        assert len(rows) == len(block_ids)
        pairs = torch.tensor([list(rows), list(block_ids)], dtype=torch.int64)
        for start in range(0, len(block_ids), self._slot_rows):
            yield (
                pairs[0, start : start + self._slot_rows],
                pairs[1, start : start + self._slot_rows],
            )

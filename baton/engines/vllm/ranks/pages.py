"""The pages of one rank: its heads of each layer, between vLLM's cache and the staging ring.

A page in the ring is what a layer has of a block, with the heads of all ranks: `[heads][tokens][K,
then V]`; on CPUs what follows a head is in the order of vLLM's kernel. A rank has some of the heads
in the same order, so its part of a page is one run of bytes, and pages look alike however many
ranks compute: a prefill worker and a decode worker may differ in that. Where there are more ranks
than heads, several ranks have the same head, and the first of them writes it.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from baton.engines.vllm.ranks.cache_views import CacheForm, pages_of
from baton.model.gpu.block_staging import BlockStaging
from baton.model.tensors.side_stream import SideStream, side_stream


class Heads(NamedTuple):
    """The KV heads of one rank, of so many in all; `is_writer`: no rank before it has them, too."""

    first: int
    num: int
    total: int
    is_writer: bool

    @classmethod
    def of_rank(cls, rank: int, num_ranks: int, total: int) -> "Heads":
        """Divide the heads as vLLM does. Raises ValueError where they cannot be divided evenly."""
        if max(num_ranks, total) % min(num_ranks, total):
            raise ValueError(f"{total} KV heads cannot be divided by {num_ranks} ranks")
        first, rest = divmod(rank * total, num_ranks)
        return cls(first, max(1, total // num_ranks), total, rest == 0)


class RankBlocks:
    """What one rank has of each block: its part of a page in each layer.

    Rows are `[num_rows, num_layers, numbers of a part]`.
    """

    def __init__(
        self, caches: Mapping[str, torch.Tensor], heads: Heads, form: CacheForm | None = None
    ) -> None:
        """`form` None: a block of vLLM's is a block of the cache."""
        first = next(iter(caches.values()))
        form = form or CacheForm(len(first))
        self.num_blocks, self.device = form.num_blocks, first.device
        self._heads = heads
        layers = [pages_of(name, cache, heads.num, form) for name, cache in caches.items()]
        # Of layers that have numbers of different widths the narrowest.
        self._number = min((each.dtype for each in layers), key=lambda each: each.itemsize)
        self._layers = [layer.view(self._number) for layer in layers]

    def gather(self, ids: torch.Tensor, rows: torch.Tensor) -> None:
        """As `BlockCache.gather`."""
        for number, layer in enumerate(self._layers):
            rows[:, number] = layer[ids].flatten(1)

    def scatter(self, rows: torch.Tensor, ids: torch.Tensor) -> None:
        """As `BlockCache.scatter`."""
        for number, layer in enumerate(self._layers):
            layer[ids] = rows[:, number].view(-1, *layer.shape[1:])

    def rows_of(self, ring: memoryview, num_rows: int) -> torch.Tensor:
        """The rank's rows in the ring: a block's pages lie one after the other in its row. Raises
        ValueError when its pages are not as large as those of the cache."""
        heads, num_layers = self._heads, len(self._layers)
        pages = torch.frombuffer(ring, dtype=torch.uint8).view(num_rows, num_layers, -1)
        head_bytes = pages.shape[2] // heads.total
        part = pages[:, :, heads.first * head_bytes : (heads.first + heads.num) * head_bytes]
        for layer in self._layers:
            num_bytes = layer[0].numel() * layer.element_size()
            if num_bytes != part.shape[2]:
                raise ValueError(f"a page has {part.shape[2]} bytes, the cache {num_bytes}")
        return part.view(self._number)


class RankPages:
    """Copies blocks of one rank; `bind` comes before the first copy.

    A cache in host memory is copied to and from the ring while the caller waits, one on a device
    through slots and beside the steps; `stream` None: the one of that device.
    """

    def __init__(self, blocks: RankBlocks, heads: Heads, stream: SideStream | None = None) -> None:
        self._blocks = blocks
        self._heads = heads
        is_beside = stream is not None or blocks.device.type != "cpu"
        self._stream = (stream or side_stream(blocks.device)) if is_beside else None
        self._ring: torch.Tensor
        self._staging: BlockStaging | None = None
        # For each save that is under way, the copies that must have ended.
        self._saves: deque[int] = deque()
        self._num_saved = 0

    @property
    def is_beside(self) -> bool:
        """Saves end after they were begun."""
        return self._stream is not None

    def bind(self, ring: memoryview, num_rows: int) -> None:
        """Take the ring. Raises ValueError when its pages are not as large as the cache's."""
        self._ring = self._blocks.rows_of(ring, num_rows)
        if self._stream is not None:
            self._staging = BlockStaging(self._blocks, self._ring, self._stream)

    def save(self, block_ids: Sequence[int], rows: Sequence[int]) -> None:
        """Copy blocks from the cache into rows of the ring, or begin to: `num_saved` tells."""
        if not block_ids:
            return
        if self._staging is None:
            if self._heads.is_writer:
                self._ring[list(rows)] = self._gathered(block_ids)
            return
        if self._heads.is_writer:
            self._staging.download(block_ids, rows)
        self._saves.append(self._staging.num_begun)

    def load(self, rows: Sequence[int], block_ids: Sequence[int]) -> None:
        """Copy rows of the ring into blocks of the cache. The rows are read when this returns; what
        computes from now on finds the blocks."""
        if self._staging is not None:
            self._staging.upload(rows, block_ids)
        elif rows:
            self._blocks.scatter(self._ring[list(rows)], torch.tensor(block_ids))

    def num_saved(self) -> int:
        """The number of saves that have ended of those beside the steps, in their order; does not
        wait."""
        if self._staging is not None:
            num_ended = self._staging.poll()
            while self._saves and self._saves[0] <= num_ended:
                self._saves.popleft()
                self._num_saved += 1
        return self._num_saved

    def _gathered(self, block_ids: Sequence[int]) -> torch.Tensor:
        rows = self._ring.new_empty(len(block_ids), *self._ring.shape[1:])
        self._blocks.gather(torch.tensor(block_ids), rows)
        return rows

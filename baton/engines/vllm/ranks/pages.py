"""The pages of one rank: its heads of each layer, between vLLM's cache and the staging ring.

A page in the ring is what a layer has of a block, with the heads of all ranks: `[heads][tokens][K
and V of a token]`. A rank's cache has some of the heads in the same order, so its part of a page is
one run of bytes, and pages look alike however many ranks compute: a prefill worker and a decode
worker may differ in that. Where there are more ranks than heads, several ranks have the same head,
and the first of them writes it.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch


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


class RankPages:
    """Copies blocks of one rank; `bind` comes before the first copy."""

    def __init__(self, caches: Mapping[str, torch.Tensor], heads: Heads) -> None:
        self._heads = heads
        self._layers = [_as_bytes(name, cache, heads) for name, cache in caches.items()]
        self._parts: list[torch.Tensor] = []

    def bind(self, ring: memoryview, num_rows: int) -> None:
        """Take the ring, by layer: a block's pages lie one after the other in its row. Raises
        ValueError when its pages are not as large as those of the cache."""
        heads = self._heads
        rows = torch.frombuffer(ring, dtype=torch.uint8).view(num_rows, len(self._layers), -1)
        head_bytes = rows.shape[2] // heads.total
        part = slice(heads.first * head_bytes, (heads.first + heads.num) * head_bytes)
        self._parts = [rows[:, layer, part] for layer in range(len(self._layers))]
        for cache, pages in zip(self._layers, self._parts, strict=True):
            if cache.shape[1] != pages.shape[1]:
                raise ValueError(f"a page has {pages.shape[1]} bytes, the cache {cache.shape[1]}")

    def save(self, block_ids: Sequence[int], rows: Sequence[int]) -> None:
        """Copy blocks from the cache into rows of the ring."""
        if block_ids and self._heads.is_writer:
            for cache, pages in zip(self._layers, self._parts, strict=True):
                pages[rows] = cache[block_ids].cpu()

    def load(self, rows: Sequence[int], block_ids: Sequence[int]) -> None:
        """Copy rows of the ring into blocks of the cache."""
        for cache, pages in zip(self._layers, self._parts, strict=True):
            cache[block_ids] = pages[rows].to(cache.device)


def _as_bytes(name: str, cache: torch.Tensor, heads: Heads) -> torch.Tensor:
    """`[num_blocks, bytes]`. Raises ValueError for a cache whose blocks are not divided by head
    first: a part of its page would be parts of all heads."""
    if cache.ndim != 4 or cache.shape[1] != heads.num or not cache.is_contiguous():
        shape = "x".join(map(str, cache.shape))
        raise ValueError(f"{name}: the cache is {shape}, not blocks x {heads.num} heads x ...")
    return cache.view(cache.shape[0], -1).view(torch.uint8)

"""Whole blocks between a device's cache and the pool that is shared with the front.

What decode workers are sent and what prefill workers hand over lies in the shared pool; attention
reads the device's cache. Copies go through a page-locked buffer and are waited for, so that a step
begins with what was sent and its results are told when its blocks are there. They do not overlap
with computing: that would want the pool itself page-locked, and a stream of its own.
"""

from collections.abc import Iterator, Sequence

import torch

from baton.engine.model.kv_pool import KVPool

BUFFER_BYTES = 64 * 2**20


class BlockStaging:
    """Between a cache and a shared pool of equally many blocks."""

    def __init__(self, cache: KVPool, shared: memoryview) -> None:
        self._cache = cache.rows
        self._shared = torch.frombuffer(shared, dtype=torch.uint8).view(cache.rows.shape)
        num_rows = max(1, min(BUFFER_BYTES // cache.spec.row_bytes, cache.num_blocks))
        shape = num_rows, cache.spec.row_bytes
        self._buffer = torch.empty(shape, dtype=torch.uint8, pin_memory=cache.rows.is_cuda)

    def upload(self, block_ids: Sequence[int]) -> None:
        """From the shared pool into the cache."""
        for ids in self._parts(block_ids):
            part = self._buffer[: len(ids)]
            torch.index_select(self._shared, 0, ids, out=part)
            self._cache[ids.to(self._cache.device)] = part.to(self._cache.device)

    def download(self, block_ids: Sequence[int]) -> None:
        """From the cache into the shared pool; waits for the device."""
        for ids in self._parts(block_ids):
            part = self._buffer[: len(ids)]
            part.copy_(self._cache[ids.to(self._cache.device)])
            self._shared[ids] = part

    def _parts(self, block_ids: Sequence[int]) -> Iterator[torch.Tensor]:
        """The ids, so many at a time as the buffer holds."""
        size = len(self._buffer)
        for start in range(0, len(block_ids), size):
            yield torch.tensor(block_ids[start : start + size], dtype=torch.int64)

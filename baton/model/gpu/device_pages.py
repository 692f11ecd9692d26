"""A device's pool for one-sided reads: a landing ring beside it, copies into blocks, checksums.

Everything runs on the stream that the steps run on, between them, so that it is in order with what
the steps compute. Knows nothing of peers and transfers.
"""

from collections.abc import Sequence

import numpy as np
import torch

from baton.engine.protocol.page_checksum import WORD_BYTES, word_factors
from baton.model.tensors.kv_pool import KVPool


class DevicePages:
    """`ring_bytes` of the device's memory are kept for pages that arrive."""

    def __init__(self, pool: KVPool, ring_bytes: int) -> None:
        """Raises ValueError when the pool's pages are not whole words."""
        spec = self._spec = pool.spec
        sizes = [layer.page_bytes(spec.block_size) for layer in spec.layers]
        offsets = [layer.offset for layer in spec.layers]
        if any(number % WORD_BYTES for number in (spec.row_bytes, *sizes, *offsets)):
            raise ValueError("the KV cache's pages are not whole 64-bit words")
        self._rows = pool.rows
        self._ring = torch.empty(ring_bytes, dtype=torch.uint8, device=pool.rows.device)
        factors = word_factors(max(sizes) // WORD_BYTES).view(np.int64)
        self._factors = torch.from_numpy(factors).to(pool.rows.device)

    @property
    def pool(self) -> tuple[int, int]:
        """Address and bytes of the pool."""
        return self._rows.data_ptr(), self._rows.numel()

    @property
    def ring(self) -> tuple[int, int]:
        """Address and bytes of the ring."""
        return self._ring.data_ptr(), self._ring.numel()

    @torch.inference_mode()
    def place(self, ring_start: int, layer: int, block_ids: Sequence[int]) -> None:
        """Begin to copy one page after the other from the ring into these blocks."""
        words = self._words(layer)
        size = words.shape[1] * WORD_BYTES
        pages = self._ring[ring_start : ring_start + size * len(block_ids)].view(torch.int64)
        words[self._ids(block_ids)] = pages.view(-1, words.shape[1])

    @torch.inference_mode()
    def checksums(self, pages: Sequence[tuple[int, Sequence[int]]]) -> list[list[int]]:
        """The checksums of the pages (layer, block ids); waits for all that was begun before."""
        sums = [self._sums(layer, block_ids) for layer, block_ids in pages]
        if self._rows.is_cuda:
            torch.cuda.current_stream().synchronize()
        flat: list[int] = torch.cat(sums).view(torch.uint64).tolist() if sums else []
        ends = np.cumsum([len(each) for each in sums]).tolist()
        return [flat[end - len(each) : end] for end, each in zip(ends, sums, strict=True)]

    def _sums(self, layer: int, block_ids: Sequence[int]) -> torch.Tensor:
        pages = self._words(layer)[self._ids(block_ids)]
        return (pages * self._factors[: pages.shape[1]]).sum(1)

    def _words(self, layer: int) -> torch.Tensor:
        """The pages of one layer in all blocks, as 64-bit words."""
        start, end = self._spec.page_range(0, layer)
        return self._rows.view(torch.int64)[:, start // WORD_BYTES : end // WORD_BYTES]

    def _ids(self, block_ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor(block_ids, dtype=torch.int64, device=self._rows.device)

"""Pages of the KV pool as bytes: what the network reads from it and writes into it.

The pool is shared memory that the engine's core owns; a caller may touch a block only between the
core's word that it is bound and its own word that it is released. Knows nothing of sequences.
"""

from collections.abc import Sequence

from baton.wire.kv_spec import KVSpec

# A Blocks frame with its header stays below 1 MiB: larger frames were slower, and the streams of
# all transfers of a pair of workers are shared.
MAX_DATA_BYTES = 1024 * 1024 - 4096


class BlockBytes:
    """`pool` is writable bytes `[num_blocks, spec.row_bytes]`.

    Raises ValueError when one page is too large for a frame, or the pool is no whole number of
    rows.
    """

    def __init__(self, spec: KVSpec, pool: memoryview) -> None:
        self.spec = spec
        self._pool = pool.cast("B")
        self._page_bytes = [layer.page_bytes(spec.block_size) for layer in spec.layers]
        if len(self._pool) % spec.row_bytes:
            raise ValueError(
                f"a pool of {len(self._pool)} bytes is no multiple of {spec.row_bytes}"
            )
        if max(self._page_bytes) > MAX_DATA_BYTES:
            raise ValueError(
                f"a KV page of {max(self._page_bytes)} bytes exceeds a frame ({MAX_DATA_BYTES})"
            )

    @property
    def num_blocks(self) -> int:
        return len(self._pool) // self.spec.row_bytes

    def page_bytes(self, layer: int) -> int:
        """Bytes of one page of `layer`."""
        return self._page_bytes[layer]

    def blocks_per_frame(self, layer: int) -> int:
        """How many pages of `layer` fit into one frame."""
        return MAX_DATA_BYTES // self._page_bytes[layer]

    def gather(self, layer: int, block_ids: Sequence[int]) -> bytes:
        """A copy of the pages of `layer` of these blocks, one after the other."""
        pool = self._pool
        ranges = (self.spec.page_range(block_id, layer) for block_id in block_ids)
        return b"".join([pool[start:end] for start, end in ranges])

    def scatter(self, layer: int, block_ids: Sequence[int], data: bytes) -> None:
        """Write pages as `gather` gave them into these blocks."""
        size = self._page_bytes[layer]
        assert len(data) == size * len(block_ids), "whole pages, one per block"
        view = memoryview(data)
        for index, block_id in enumerate(block_ids):
            start, end = self.spec.page_range(block_id, layer)
            self._pool[start:end] = view[index * size : (index + 1) * size]

"""Pages of a shared pool as bytes: what a transfer reads from one pool and writes into another.

The pool is shared memory that the engine's core owns, in rows; a caller may touch a row only
between the core's word that it is bound and its own word that it is released. Whose block a row
holds, and when, is the core's business: ids are those of rows here. Knows nothing of sequences.
"""

from collections.abc import Sequence

from isal.isal_zlib import crc32  # zlib's crc32, bit by bit, five times as fast

from baton.handoff.page_copy import PageAddresses, copy_pages
from baton.handoff.stripes import MAX_STRIPE_BYTES
from baton.wire.kv_spec import KVSpec

# No page may be larger; where pages are read into a slot or a ring, no frame's are.
MAX_DATA_BYTES = MAX_STRIPE_BYTES
# Freed memory that a process which sends or receives pages inside frames should keep: it needs as
# much again at once (see `baton/system/allocator.py`).
KEPT_BYTES = 64 * 2**20


class BlockBytes:
    """`pool` is bytes `[num_blocks, spec.row_bytes]`, writable unless it is a peer's.

    Raises ValueError when one page is too large for a frame, or the pool is not a whole number of
    rows.
    """

    def __init__(self, spec: KVSpec, pool: memoryview) -> None:
        self.spec = spec
        self._pool = pool.cast("B")
        if len(self._pool) % spec.row_bytes:
            raise ValueError(
                f"a pool of {len(self._pool)} bytes is not a multiple of {spec.row_bytes}"
            )
        largest = max(layer.page_bytes(spec.block_size) for layer in spec.layers)
        if largest > MAX_DATA_BYTES:
            raise ValueError(f"a KV page of {largest} bytes exceeds a frame ({MAX_DATA_BYTES})")

    @property
    def memory(self) -> memoryview:
        """The whole pool."""
        return self._pool

    @property
    def num_blocks(self) -> int:
        return len(self._pool) // self.spec.row_bytes

    def stripe_bytes(self, layers: range) -> int:
        """Bytes of one block's pages of `layers`, which are adjacent."""
        return self.spec.stripe(layers)[1]

    def addresses(self, layers: range, block_ids: Sequence[int]) -> PageAddresses:
        """Where the stripes of these blocks begin."""
        row_bytes, offset = self.spec.row_bytes, self.spec.stripe(layers)[0]
        return PageAddresses(self._pool, [block_id * row_bytes + offset for block_id in block_ids])

    def stripes(self, layers: range, block_ids: Sequence[int]) -> list[memoryview]:
        """The pages of `layers` of each of these blocks, in place."""
        (pool, starts), size = self.addresses(layers, block_ids), self.stripe_bytes(layers)
        return [pool[start : start + size] for start in starts]

    def checksum(self, layers: range, block_ids: Sequence[int], start: int) -> int:
        """CRC-32 over these stripes, one after the other, that goes on from `start`."""
        checksum = start
        for stripe in self.stripes(layers, block_ids):
            checksum = crc32(stripe, checksum)
        return checksum

    def write(
        self, layers: range, block_ids: Sequence[int], source: PageAddresses, checksum: int
    ) -> int:
        """Copy stripes into these blocks; returns the CRC-32 of what then lies there, going on from
        `checksum`.

        What a peer changes while it is copied is found: each byte is loaded once for both, or the
        stripe is read back while it is in the CPU's cache.
        """
        size = self.stripe_bytes(layers)
        copied = copy_pages(self.addresses(layers, block_ids), source, size, checksum)
        if copied is not None:
            return copied
        for target, start in zip(self.stripes(layers, block_ids), source.starts, strict=True):
            target[:] = source.memory[start : start + size]
            checksum = crc32(target, checksum)
        return checksum

"""The KV blocks of one sequence, in the order of its tokens."""

import numpy as np
from numpy.typing import NDArray


class BlockTable:
    """Block ids in an int32 buffer that grows by doubling, and what is known of the blocks.

    Entry 0 of `hash_chain` is the root, entry i + 1 the hash of block i, as far as they are known.
    """

    __slots__ = (
        "_ids",
        "hash_chain",
        "may_share_last",
        "num_blocks",
        "num_registered",
        "num_reported",
    )

    def __init__(self, hash_chain: list[bytes]) -> None:
        self._ids = np.empty(16, np.int32)
        self.hash_chain = hash_chain
        self.num_blocks = 0
        # The first blocks, which have been entered into the prefix cache.
        self.num_registered = 0
        # The first blocks, which are final and whose checksums were reported where they are wanted.
        self.num_reported = 0
        # Another table may refer to the last block too: before it is written, that must be checked.
        self.may_share_last = False

    def extend(self, block_ids: list[int]) -> None:
        end = self.num_blocks + len(block_ids)
        if end > len(self._ids):
            self._ids = np.resize(self._ids, max(end, 2 * len(self._ids)))
        self._ids[self.num_blocks : end] = block_ids
        self.num_blocks = end

    def replace(self, index: int, block_id: int) -> None:
        self._ids[index] = block_id

    @property
    def ids(self) -> NDArray[np.int32]:
        """View of the ids; valid until the table changes."""
        return self._ids[: self.num_blocks]

    def take(self) -> list[int]:
        """Empty the table and return its ids. The hashes stay known."""
        block_ids: list[int] = self.ids.tolist()
        self.num_blocks = 0
        self.num_registered = 0
        self.may_share_last = False
        return block_ids

"""Hashes that entered and left the prefix cache since the last report, for the router.

A report is applied as: all removed, then all stored. So a hash that was stored and then removed
within one report must show up as not stored at all.
"""

from baton.engine.protocol.messages import StoredBlocks


class KvEventLog:
    """Bounded by the pool: at most one entry per block and direction."""

    def __init__(self) -> None:
        self._removed: dict[bytes, None] = {}
        self._parent_of_stored: dict[bytes, bytes] = {}

    def stored(self, block_hash: bytes, parent_hash: bytes) -> None:
        self._parent_of_stored[block_hash] = parent_hash

    def removed(self, block_hash: bytes) -> None:
        if self._parent_of_stored.pop(block_hash, None) is None:
            self._removed[block_hash] = None

    def take(self) -> tuple[bytes, list[StoredBlocks]]:
        """Everything since the last call: removed hashes, and stored ones as chains."""
        if not self._removed and not self._parent_of_stored:
            return b"", []
        removed, self._removed = b"".join(self._removed), {}
        stored, self._parent_of_stored = self._parent_of_stored, {}
        chains: list[tuple[bytes, list[bytes]]] = []
        for block_hash, parent in stored.items():
            if chains and chains[-1][1][-1] == parent:
                chains[-1][1].append(block_hash)
            else:
                chains.append((parent, [block_hash]))
        return removed, [StoredBlocks(parent, b"".join(hashes)) for parent, hashes in chains]

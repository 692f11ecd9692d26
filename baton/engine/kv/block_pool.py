"""The fixed set of KV blocks: which are free, cached or referenced, and how many are promised.

A block is in exactly one of three states: *blank* (no reference, no hash), *idle* (no reference,
but its hash can still be hit; least recently used first) or referenced by `ref_count` tables. Free
= blank + idle. A promise (decision 0029) is a count of free blocks for one sequence. Deliberately
knows no sequences, tokens or bytes.
"""

from collections import OrderedDict, deque
from functools import reduce
from operator import xor

from baton.engine.protocol.cache_messages import StoredBlocks
from baton.wire.prefix_hash import short_hash

MAX_PROMISED_SHARE = 0.3


class KvEventLog:
    """Hashes that entered and left the prefix cache since the last report, for the router.

    A report is applied as: all removed, then all stored. So a hash that was stored and then removed
    within one report must show up as not stored at all. Bounded by the pool: at most one entry per
    block and direction.
    """

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


class BlockPool:
    """Block ids 0 .. num_blocks - 1. Asserts its invariants; `can_*` never mutates."""

    def __init__(self, num_blocks: int, kv_events: KvEventLog) -> None:
        self.num_blocks = num_blocks
        self.num_promised = 0
        # For audits: counted where they change, apart from the lists themselves.
        self.num_referenced = 0
        self.num_references = 0
        self._kv_events = kv_events
        self._ref_counts = [0] * num_blocks
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._block_of_hash: dict[bytes, int] = {}
        self._blank = deque(range(num_blocks))
        self._idle: OrderedDict[int, None] = OrderedDict()
        # XOR over the cached hashes: routers prove what they believe to be cached by it.
        self.digest = 0

    @property
    def num_hashes(self) -> int:
        """Blocks in the prefix cache."""
        return len(self._block_of_hash)

    @property
    def num_free(self) -> int:
        """Blocks without a reference, promised ones included."""
        return len(self._blank) + len(self._idle)

    @property
    def num_available(self) -> int:
        """Free blocks that are not promised."""
        return len(self._blank) + len(self._idle) - self.num_promised

    def can_promise(self, num_blocks: int, num_own: int = 0) -> bool:
        """The cap allows it: 30 % in sum, but one request alone may exceed that.

        `num_own` blocks are promised to the same request already (its other choices).
        """
        cap = int(self.num_blocks * MAX_PROMISED_SHARE)
        within_cap = self.num_promised == num_own or self.num_promised + num_blocks <= cap
        return within_cap and num_blocks <= self.num_available

    def promise(self, num_blocks: int, num_own: int = 0) -> None:
        assert self.can_promise(num_blocks, num_own)
        self.num_promised += num_blocks

    def end_promise(self, num_blocks: int) -> None:
        """The blocks are available again, for their holder or for anyone."""
        assert 0 <= num_blocks <= self.num_promised
        self.num_promised -= num_blocks

    def allocate(self, num_blocks: int) -> list[int]:
        """Take blocks with one reference each: blank ones first, then the least recently used."""
        assert num_blocks <= self.num_available, (num_blocks, self.num_available)
        return [self._allocate_one() for _ in range(num_blocks)]

    def find(self, block_hash: bytes) -> int | None:
        """The block that holds this prefix, referenced or idle."""
        return self._block_of_hash.get(block_hash)

    def is_idle(self, block_id: int) -> bool:
        """Referencing it would take it from the free blocks."""
        return block_id in self._idle

    def ref_count(self, block_id: int) -> int:
        """Tables that name the block."""
        return self._ref_counts[block_id]

    def is_shared(self, block_id: int) -> bool:
        """More than one table names it: it may not be written into."""
        return self._ref_counts[block_id] > 1

    def retain(self, block_id: int) -> None:
        """One reference more to a cached or referenced block."""
        if self._ref_counts[block_id] == 0:
            assert self.num_available > 0
            del self._idle[block_id]
            self.num_referenced += 1
        self._ref_counts[block_id] += 1
        self.num_references += 1

    def release(self, block_ids: list[int]) -> None:
        """One reference less to each, in this order: what comes first is evicted first."""
        for block_id in block_ids:
            count = self._ref_counts[block_id] - 1
            assert count >= 0, f"block {block_id} released twice"
            self._ref_counts[block_id] = count
            self.num_references -= 1
            self.num_referenced -= count == 0
            if count == 0 and self._hashes[block_id] is None:
                self._blank.append(block_id)
            elif count == 0:
                self._idle[block_id] = None

    def register(self, block_id: int, block_hash: bytes, parent_hash: bytes) -> None:
        """The block is full and final: its prefix can be hit. The first holder of a hash wins."""
        assert self._ref_counts[block_id] > 0
        if block_hash in self._block_of_hash:
            return
        assert self._hashes[block_id] is None, f"block {block_id} filled twice"
        self._hashes[block_id] = block_hash
        self._block_of_hash[block_hash] = block_id
        self.digest ^= short_hash(block_hash)
        self._kv_events.stored(block_hash, parent_hash)

    def all_hashes(self) -> bytes:
        """Every hash in the prefix cache, in no particular order."""
        return b"".join(self._block_of_hash)

    def check_integrity(self, expected_refs: dict[int, int]) -> None:
        """Assert that the books balance; `expected_refs` counts the tables that name each block."""
        free = [*self._blank, *self._idle]
        assert len(free) == len(set(free)), "a block is free twice"
        referenced = {b for b, count in enumerate(self._ref_counts) if count}
        assert referenced.isdisjoint(free)
        assert len(free) + len(referenced) == self.num_blocks, "blocks leaked"
        assert {b: self._ref_counts[b] for b in referenced} == expected_refs
        assert self.num_referenced == len(referenced)
        assert self.num_references == sum(expected_refs.values())
        assert 0 <= self.num_promised <= self.num_free
        assert all(self._hashes[b] is None for b in self._blank)
        assert all(self._hashes[b] is not None for b in self._idle)
        hashed = {h: b for b, h in enumerate(self._hashes) if h is not None}
        assert hashed == self._block_of_hash, "hash index and blocks disagree"
        assert reduce(xor, map(short_hash, hashed), 0) == self.digest

    def _allocate_one(self) -> int:
        if self._blank:
            block_id = self._blank.popleft()
        else:
            block_id, _ = self._idle.popitem(last=False)
            self._evict(block_id)
        assert self._ref_counts[block_id] == 0
        assert self._hashes[block_id] is None
        self._ref_counts[block_id] = 1
        self.num_referenced += 1
        self.num_references += 1
        return block_id

    def _evict(self, block_id: int) -> None:
        block_hash = self._hashes[block_id]
        assert block_hash is not None
        del self._block_of_hash[block_hash]
        self.digest ^= short_hash(block_hash)
        self._hashes[block_id] = None
        self._kv_events.removed(block_hash)

"""Gives sequences their blocks and keeps the prefix cache (decision D16).

Placing a sequence is a question (`place`, `can_take`) and then one of two actions: `begin` (blocks
now) or `promise` and later `bind` (a remote sequence: cached blocks pinned now, ids for the others
when its prefill starts). Knows nothing of steps, priorities or queues.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from baton.engine.block_pool import BlockPool
from baton.engine.kv_events import KvEventLog
from baton.engine.messages import AddSequence, StoredBlocks
from baton.engine.sequence import Sequence
from baton.wire.prefix_hash import next_hash, root_hash

NUM_GROWTH_BLOCKS = 2  # promised beyond the prompt (reliability 5.4)


@dataclass(frozen=True, slots=True)
class Placement:
    """What a sequence would hit in the cache and what it would need besides."""

    cached_ids: list[int]
    num_new_blocks: int
    # New blocks, and cached ones that would leave the free blocks.
    num_free_needed: int


class BlockManager:
    """All block tables of one engine. `reserve` = available blocks that must remain."""

    def __init__(self, num_blocks: int, block_size: int, model_fp: str) -> None:
        self._kv_events = KvEventLog()
        self._pool = BlockPool(num_blocks, self._kv_events)
        self.block_size = block_size
        self._model_fp = model_fp
        # (request_id, number of blocks) by seq_id.
        self._promises: dict[int, tuple[str, int]] = {}

    @property
    def num_free_blocks(self) -> int:
        return self._pool.num_free

    @property
    def num_available_blocks(self) -> int:
        """Free blocks that are not promised."""
        return self._pool.num_available

    @property
    def num_promised_blocks(self) -> int:
        return self._pool.num_promised

    def root_hash(self, request: AddSequence) -> bytes:
        return root_hash(self._model_fp, self.block_size, request.cache_key)

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def place(self, seq: Sequence) -> Placement:
        """Where a sequence that computes here would go: its last token is never a cache hit.

        Nor is a prompt token whose successor is still to be judged: that takes its logits.
        """
        num_cacheable = seq.num_judged_tokens if seq.judges_prompt else seq.num_tokens
        return self._place(seq, (num_cacheable - 1) // self.block_size, seq.num_tokens)

    def place_remote(self, seq: Sequence, max_tokens: int) -> Placement:
        """The same for a remote one: every full block may hit; room to grow, up to `max_tokens`."""
        growth = NUM_GROWTH_BLOCKS * self.block_size
        rounded = self.num_blocks_for(seq.num_tokens) * self.block_size
        return self._place(
            seq, seq.num_tokens // self.block_size, min(rounded + growth, max_tokens)
        )

    def can_take(self, placement: Placement, reserve: int) -> bool:
        return placement.num_free_needed + reserve <= self._pool.num_available

    def begin(self, seq: Sequence, placement: Placement) -> None:
        """Give the sequence its whole table; what the cache holds of it counts as computed."""
        self._pin(seq, placement.cached_ids)
        seq.table.extend(self._pool.allocate(placement.num_new_blocks))
        seq.num_computed_tokens = len(placement.cached_ids) * self.block_size

    def can_promise(self, seq: Sequence, placement: Placement, reserve: int) -> bool:
        can_take = self.can_take(placement, reserve)
        num_own = self._num_promised_to(seq.request.request_id)
        return can_take and self._pool.can_promise(placement.num_new_blocks, num_own)

    def promise(self, seq: Sequence, placement: Placement) -> None:
        """Pin what is cached and set the rest aside as a number."""
        num_own = self._num_promised_to(seq.request.request_id)
        self._pin(seq, placement.cached_ids)
        self._pool.promise(placement.num_new_blocks, num_own)
        self._promises[seq.request.seq_id] = (seq.request.request_id, placement.num_new_blocks)

    def bind(self, seq: Sequence) -> list[int]:
        """Turn the promise into blocks; returns those that cover the tokens. Cannot fail."""
        _, num_blocks = self._promises.pop(seq.request.seq_id)
        self._pool.end_promise(num_blocks)
        seq.table.extend(self._pool.allocate(num_blocks))
        table: list[int] = seq.table.ids[: self.num_blocks_for(seq.num_tokens)].tolist()
        return table

    def can_grow(self, seq: Sequence) -> bool:
        """Whether the KV of the sequence's last token has a block, or can get one."""
        return self._has_slot(seq) or self._pool.num_available > 0

    def grow(self, seq: Sequence) -> None:
        if not self._has_slot(seq):
            seq.table.extend(self._pool.allocate(1))

    def register_full_blocks(self, seq: Sequence) -> None:
        """Enter the blocks that are full and computed by now into the prefix cache."""
        num_full = seq.num_computed_tokens // self.block_size
        if num_full == seq.num_registered_blocks:
            return
        self._extend_chain(seq, num_full)
        for index in range(seq.num_registered_blocks, num_full):
            chain = seq.hash_chain
            self._pool.register(int(seq.table.ids[index]), chain[index + 1], chain[index])
        seq.num_registered_blocks = num_full

    def free(self, seq: Sequence) -> None:
        """Give everything back, the tail first: it is the least likely to be hit again."""
        _, num_promised = self._promises.pop(seq.request.seq_id, ("", 0))
        self._pool.end_promise(num_promised)
        self._pool.release(seq.table.take()[::-1])
        seq.num_computed_tokens = 0
        seq.num_registered_blocks = 0

    def take_kv_events(self) -> tuple[bytes, list[StoredBlocks]]:
        """Removed hashes and stored chains since the last call."""
        return self._kv_events.take()

    def snapshot(self) -> bytes:
        return self._pool.all_hashes()

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Assert that pool, tables and promises agree; `sequences` are all that live."""
        refs = Counter(block_id for seq in sequences for block_id in seq.table.ids.tolist())
        self._pool.check_integrity(dict(refs))
        assert sum(count for _, count in self._promises.values()) == self._pool.num_promised

    def _num_promised_to(self, request_id: str) -> int:
        return sum(count for owner, count in self._promises.values() if owner == request_id)

    def _place(self, seq: Sequence, max_cached_blocks: int, num_tokens: int) -> Placement:
        assert seq.table.num_blocks == 0
        self._extend_chain(seq, max_cached_blocks)
        cached: list[int] = []
        for block_hash in seq.hash_chain[1 : max_cached_blocks + 1]:
            block_id = self._pool.find(block_hash)
            if block_id is None:
                break
            cached.append(block_id)
        num_new = self.num_blocks_for(num_tokens) - len(cached)
        return Placement(cached, num_new, num_new + sum(map(self._pool.is_idle, cached)))

    def _pin(self, seq: Sequence, cached_ids: list[int]) -> None:
        for block_id in cached_ids:
            self._pool.retain(block_id)
        seq.table.extend(cached_ids)
        seq.num_registered_blocks = len(cached_ids)

    def _has_slot(self, seq: Sequence) -> bool:
        return seq.num_tokens <= seq.table.num_blocks * self.block_size

    def _extend_chain(self, seq: Sequence, num_blocks: int) -> None:
        chain, size = seq.hash_chain, self.block_size
        for index in range(len(chain) - 1, num_blocks):
            tokens = seq.tokens(index * size, (index + 1) * size).tobytes()
            chain.append(next_hash(chain[-1], tokens, seq.request.cache_key))

"""Gives sequences their blocks and keeps the prefix cache (decision 0028).

A new sequence is matched with the cache (`match_prefix`, `can_allocate`). Then `allocate` gives it
its blocks now; or `promise` and later `bind` serve a remote sequence, whose cached blocks are
pinned now and which gets the others when its prefill starts. A fork shares its parent's blocks.
Full blocks are never written again, so only the last one is copied, by the sequence that writes
into it while others still refer to it (copy on write, after vLLM's block manager, SOSP 2023). Knows
nothing of steps, priorities or queues.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from baton.engine.kv.block_pool import BlockPool, KvEventLog
from baton.engine.kv.handoff_rows import HandoffRows
from baton.engine.protocol.cache_messages import StoredBlocks
from baton.engine.protocol.messages import AddSequence
from baton.engine.sequence.sequence import Sequence
from baton.wire.prefix_hash import next_hash, root_hash

NUM_GROWTH_BLOCKS = 2  # promised beyond the prompt (decision 0029)


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The cached blocks of a sequence's prefix, and how many blocks it needs besides."""

    cached_ids: list[int]
    num_new_blocks: int
    # New blocks, and cached ones that would leave the free blocks.
    num_free_needed: int
    # Blocks that its forks will need for themselves.
    num_fork_blocks: int = 0


@dataclass(slots=True)
class _Promise:
    """Blocks set aside: for the sequence until it is bound, for its forks until they start."""

    request_id: str
    num_blocks: int
    num_fork_blocks: int

    @property
    def num_left(self) -> int:
        return self.num_blocks + self.num_fork_blocks


class BlockManager:
    """All block tables of one engine. `reserve` = available blocks that must remain."""

    def __init__(
        self, num_blocks: int, block_size: int, model_fp: str, rows: HandoffRows | None = None
    ) -> None:
        self.rows = rows or HandoffRows()
        self._kv_events = KvEventLog()
        self._pool = BlockPool(num_blocks, self._kv_events)
        self.block_size = block_size
        self._model_fp = model_fp
        self._promises: dict[int, _Promise] = {}  # by seq_id
        self._block_copies: list[tuple[int, int]] = []
        # The engine's time, which it sets: for how long sequences hold their blocks.
        self.now_us = 0
        # By sequence that has given its blocks back: blocks times microseconds that are not told.
        self._left_block_us: Counter[int] = Counter()

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

    @property
    def num_references(self) -> int:
        """Entries of all tables, as the pool counts them."""
        return self._pool.num_references

    def imbalance(self) -> str | None:
        """Say what does not add up to the pool; None when all does."""
        pool = self._pool
        num_promised = sum(promise.num_left for promise in self._promises.values())
        if pool.num_free + pool.num_referenced != pool.num_blocks:
            return f"{pool.num_free} free + {pool.num_referenced} in use != {pool.num_blocks}"
        if num_promised != pool.num_promised:
            return f"{num_promised} promised to sequences, {pool.num_promised} in the pool"
        if not 0 <= num_promised <= pool.num_free:
            return f"{num_promised} promised of {pool.num_free} free"
        return None

    def promises(self) -> Iterator[tuple[int, str, int]]:
        """(sequence, request, number of blocks) of every open promise."""
        for seq_id, promise in self._promises.items():
            yield seq_id, promise.request_id, promise.num_left

    def wrong_references(self, expected: Mapping[int, int]) -> set[int]:
        """Blocks that the pool counts otherwise. Looks at every block."""
        blocks = range(self._pool.num_blocks)
        return {b for b in blocks if self._pool.ref_count(b) != expected.get(b, 0)}

    def root_hash(self, request: AddSequence) -> bytes:
        return root_hash(self._model_fp, self.block_size, request.cache_key)

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def match_prefix(self, seq: Sequence) -> PrefixMatch:
        """Match a sequence that computes here; its last token is never a cache hit.

        Neither is a prompt token whose successor's logprobs are still wanted: they need its logits;
        nor a token whose state goes into a vector.
        """
        num_cacheable = seq.next_prompt_logprob if seq.wants_prompt_logprobs else seq.num_tokens
        if seq.pooled is not None and seq.pooled.takes_all:
            num_cacheable = 1
        return self._match(seq, (num_cacheable - 1) // self.block_size, seq.num_tokens)

    def match_remote_prefix(
        self, seq: Sequence, max_tokens: int, num_forks: int = 0
    ) -> PrefixMatch:
        """Match a remote one: every full block may hit; with room to grow, up to `max_tokens`."""
        num_full = seq.num_tokens // self.block_size
        growth = NUM_GROWTH_BLOCKS * self.block_size
        rounded = self.num_blocks_for(seq.num_tokens) * self.block_size
        num_tokens = min(rounded + growth, max_tokens)
        found = self._match(seq, num_full, num_tokens)
        num_fork_blocks = num_forks * (self.num_blocks_for(num_tokens) - num_full)
        num_free_needed = found.num_free_needed + num_fork_blocks
        return replace(found, num_free_needed=num_free_needed, num_fork_blocks=num_fork_blocks)

    def can_allocate(self, match: PrefixMatch, reserve: int) -> bool:
        return match.num_free_needed + reserve <= self._pool.num_available

    def allocate(self, seq: Sequence, match: PrefixMatch) -> None:
        """Give the sequence its whole table, and a prefill its rows; what the cache holds of it
        counts as computed."""
        has_rows = self.rows.lease(seq.request.seq_id, self._num_rows_to_fill(seq))
        assert has_rows, "has_rows_for() was asked"
        self._pin(seq, match.cached_ids)
        self._extend(seq, self._pool.allocate(match.num_new_blocks))
        seq.num_computed_tokens = len(match.cached_ids) * self.block_size

    def can_promise(self, seq: Sequence, match: PrefixMatch, reserve: int) -> bool:
        can_allocate = self.can_allocate(match, reserve)
        num_own = self._num_promised_to(seq.request.request_id)
        num_blocks = match.num_new_blocks + match.num_fork_blocks
        return can_allocate and self._pool.can_promise(num_blocks, num_own)

    def promise(self, seq: Sequence, match: PrefixMatch) -> None:
        """Pin what is cached and set the rest aside as a number."""
        request = seq.request
        num_own = self._num_promised_to(request.request_id)
        promise = _Promise(request.request_id, match.num_new_blocks, match.num_fork_blocks)
        self._pin(seq, match.cached_ids)
        self._pool.promise(promise.num_left, num_own)
        self._promises[request.seq_id] = promise

    def bind(self, seq: Sequence) -> None:
        """Turn the promise into blocks. Cannot fail."""
        promise = self._promises[seq.request.seq_id]
        self._pool.end_promise(promise.num_blocks)
        self._extend(seq, self._pool.allocate(promise.num_blocks))
        promise.num_blocks = 0

    def end_promise(self, seq: Sequence) -> None:
        """Let the sequence's forks take the blocks that are still promised to it."""
        promise = self._promises.pop(seq.request.seq_id, None)
        if promise is not None:
            self._pool.end_promise(promise.num_left)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """The child, without blocks and with the same tokens, shares all that the parent computed.

        Nothing is copied before one of them writes.
        """
        assert child.table.num_blocks == 0
        num_shared = self.num_blocks_for(parent.num_computed_tokens)
        self._share(parent, child, num_shared)
        child.num_computed_tokens = parent.num_computed_tokens
        child.table.num_registered = parent.table.num_registered
        child.table.hash_chain = parent.table.hash_chain.copy()

    def allocate_beside(self, parent: Sequence, child: Sequence) -> None:
        """A child that lost its blocks begins again: the parent's full blocks, and its own."""
        assert child.table.num_blocks == 0
        num_shared = parent.num_tokens // self.block_size
        self._share(parent, child, num_shared)
        self._extend(child, self._pool.allocate(self.num_blocks_beside(parent, child)))
        child.table.num_registered = num_shared
        child.num_computed_tokens = num_shared * self.block_size

    def num_blocks_beside(self, parent: Sequence, child: Sequence) -> int:
        """Blocks of its own that `allocate_beside` gives to the child."""
        num_shared = parent.num_tokens // self.block_size
        return self.num_blocks_for(child.num_tokens) - num_shared

    def num_blocks_of(self, seqs: Iterable[Sequence]) -> int:
        """Different blocks that they refer to."""
        return len({block_id for seq in seqs for block_id in seq.table.ids.tolist()})

    def has_grown(self, seq: Sequence) -> bool:
        """The last token's KV surely has a slot of its own: the quick answer for most steps."""
        table = seq.table
        return seq.num_tokens <= table.num_blocks * self.block_size and not table.may_share_last

    def can_grow(self, seqs: Iterable[Sequence]) -> bool:
        """The KV of each one's last token has a block of its own, or can get one."""
        num_needed = 0
        num_writers: dict[int, int] = {}
        for seq in seqs:
            if not self._has_slot(seq):
                num_needed += 1
            elif self._pool.is_shared(block_id := self._last_block(seq)):
                num_writers[block_id] = num_writers.get(block_id, 0) + 1
        if num_writers:
            # The last reference to a block needs no copy.
            num_needed += sum(
                min(count, self._pool.ref_count(block_id) - 1)
                for block_id, count in num_writers.items()
            )
        return num_needed <= self._pool.num_available

    def grow(self, seq: Sequence) -> None:
        """Make sure that the last token's KV can be written, into a block that is not shared."""
        seq.table.may_share_last = False
        if not self._has_slot(seq):
            self._extend(seq, self._pool.allocate(1))
        elif self._pool.is_shared(shared := self._last_block(seq)):
            assert seq.num_computed_tokens % self.block_size, "a full block is never written again"
            [own] = self._pool.allocate(1)
            self._block_copies.append((shared, own))
            self._pool.release([shared])
            seq.table.replace((seq.num_tokens - 1) // self.block_size, own)

    def num_slots_ahead(self, seq: Sequence, num_tokens: int, reserve: int) -> int:
        """For how many of `num_tokens` tokens behind its last one the sequence could have slots."""
        num_free = max(0, self._pool.num_available - reserve)
        num_slots = (seq.table.num_blocks + num_free) * self.block_size - seq.num_tokens
        return min(num_tokens, num_slots)

    def grow_ahead(self, seq: Sequence, num_tokens: int) -> None:
        """Slots for that many tokens behind its last one. They may stay unused for a while."""
        num_missing = self.num_blocks_for(seq.num_tokens + num_tokens) - seq.table.num_blocks
        if num_missing > 0:
            self._extend(seq, self._pool.allocate(num_missing))

    def traveling_blocks(self, seq: Sequence) -> list[int]:
        """The blocks of its tokens that a prefill's peer lacks, or a remote sequence that has not
        started."""
        is_prefill = seq.request.kind == "prefill"
        first = seq.request.num_peer_blocks if is_prefill else seq.table.num_registered
        blocks: list[int] = seq.table.ids[first : self.num_blocks_for(seq.num_tokens)].tolist()
        return blocks

    def has_rows_for(self, seq: Sequence) -> bool:
        """A sequence that computes here can be handed over, if it is to be."""
        return self.rows.can_lease(self._num_rows_to_fill(seq))

    def take_block_copies(self) -> list[tuple[int, int]]:
        """(source, target) of all copies since the last call, in order."""
        copies, self._block_copies = self._block_copies, []
        return copies

    def register_full_blocks(self, seq: Sequence) -> None:
        """Enter the blocks that are full and computed by now into the prefix cache."""
        num_full = seq.num_computed_tokens // self.block_size
        table = seq.table
        if num_full == table.num_registered:
            return
        self._extend_chain(seq, num_full)
        chain = table.hash_chain
        for index in range(table.num_registered, num_full):
            self._pool.register(int(table.ids[index]), chain[index + 1], chain[index])
        table.num_registered = num_full

    def free(self, seq: Sequence) -> None:
        """Give everything back, the tail first: it is the least likely to be hit again."""
        self.end_promise(seq)
        self.rows.leases.free(seq.request.seq_id)
        if block_us := seq.table.take_block_us(self.now_us):
            self._left_block_us[seq.request.seq_id] += block_us
        self._pool.release(seq.table.take()[::-1])
        seq.num_computed_tokens = 0

    def take_left(self) -> Mapping[int, int]:
        """For how long the sequences that gave their blocks back since the last call had held them,
        in blocks times microseconds that were not told before."""
        left, self._left_block_us = self._left_block_us, Counter()
        return left

    def take_kv_events(self) -> tuple[bytes, list[StoredBlocks]]:
        """Removed hashes and stored chains since the last call."""
        return self._kv_events.take()

    def snapshot(self) -> bytes:
        return self._pool.all_hashes()

    @property
    def cache_digest(self) -> tuple[int, int]:
        """The number of hashes in the prefix cache, and the XOR of their short forms."""
        return self._pool.num_hashes, self._pool.digest

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Assert that pool, tables and promises agree; `sequences` are all that live."""
        refs: Counter[int] = Counter()
        places: dict[int, int] = {}
        for seq in sequences:
            for index, block_id in enumerate(seq.table.ids.tolist()):
                refs[block_id] += 1
                assert places.setdefault(block_id, index) == index, f"block {block_id} moved"
        self._pool.check_integrity(dict(refs))
        num_promised = sum(promise.num_left for promise in self._promises.values())
        assert num_promised == self._pool.num_promised
        assert not self._block_copies, "a copy was not handed to a batch"
        self.rows.leases.check_integrity()

    def _num_promised_to(self, request_id: str) -> int:
        return sum(p.num_left for p in self._promises.values() if p.request_id == request_id)

    def _num_rows_to_fill(self, seq: Sequence) -> int:
        """The rows in which a prefill's blocks will stay until they have been sent."""
        request = seq.request
        if request.kind != "prefill" or request.checksum_every is not None:
            return 0
        return max(0, self.num_blocks_for(seq.num_tokens) - request.num_peer_blocks)

    def _match(self, seq: Sequence, max_cached_blocks: int, num_tokens: int) -> PrefixMatch:
        assert seq.table.num_blocks == 0
        self._extend_chain(seq, max_cached_blocks)
        cached: list[int] = []
        for block_hash in seq.table.hash_chain[1 : max_cached_blocks + 1]:
            block_id = self._pool.find(block_hash)
            if block_id is None:
                break
            cached.append(block_id)
        num_new = self.num_blocks_for(num_tokens) - len(cached)
        return PrefixMatch(cached, num_new, num_new + sum(map(self._pool.is_idle, cached)))

    def _extend(self, seq: Sequence, block_ids: list[int]) -> None:
        seq.table.accrue(self.now_us)
        seq.table.extend(block_ids)

    def _pin(self, seq: Sequence, cached_ids: list[int]) -> None:
        for block_id in cached_ids:
            self._pool.retain(block_id)
        self._extend(seq, cached_ids)
        seq.table.num_registered = len(cached_ids)

    def _share(self, parent: Sequence, child: Sequence, num_blocks: int) -> None:
        block_ids: list[int] = parent.table.ids[:num_blocks].tolist()
        for block_id in block_ids:
            self._pool.retain(block_id)
        self._extend(child, block_ids)
        parent.table.may_share_last = child.table.may_share_last = True

    def _last_block(self, seq: Sequence) -> int:
        """The block of the sequence's last token, which has one."""
        return int(seq.table.ids[(seq.num_tokens - 1) // self.block_size])

    def _has_slot(self, seq: Sequence) -> bool:
        return seq.num_tokens <= seq.table.num_blocks * self.block_size

    def _extend_chain(self, seq: Sequence, num_blocks: int) -> None:
        chain, size = seq.table.hash_chain, self.block_size
        for index in range(len(chain) - 1, num_blocks):
            tokens = seq.tokens(index * size, (index + 1) * size).tobytes()
            chain.append(next_hash(chain[-1], tokens, seq.request.cache_key))

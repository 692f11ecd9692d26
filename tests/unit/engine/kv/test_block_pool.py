import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.engine.kv.block_pool import BlockPool, KvEventLog
from baton.engine.protocol.cache_messages import StoredBlocks

ROOT = b"r" * 16


def make_pool(num_blocks: int) -> BlockPool:
    return BlockPool(num_blocks, KvEventLog())


def hash_of(number: int) -> bytes:
    return number.to_bytes(16, "little")


def cache_blocks(pool: BlockPool, numbers: range) -> list[int]:
    """One idle cached block for each number, the first the least recently used."""
    block_ids = pool.allocate(len(numbers))
    for block_id, number in zip(block_ids, numbers, strict=True):
        pool.register(block_id, hash_of(number), ROOT)
    pool.release(block_ids)
    return block_ids


def test_blank_blocks_are_taken_before_cached_ones():
    pool = make_pool(4)
    cached = cache_blocks(pool, range(2))
    assert set(pool.allocate(2)).isdisjoint(cached)
    assert pool.find(hash_of(0)) == cached[0]


def test_the_least_recently_freed_cached_block_is_evicted_first():
    pool = make_pool(3)
    cached = cache_blocks(pool, range(3))
    pool.retain(cached[0])
    pool.release([cached[0]])
    assert pool.allocate(1) == [cached[1]]
    assert pool.find(hash_of(1)) is None
    assert pool.find(hash_of(0)) == cached[0]


def test_a_cached_block_is_shared_by_reference_count():
    pool = make_pool(2)
    [block_id] = cache_blocks(pool, range(1))
    pool.retain(block_id)
    pool.retain(block_id)
    assert pool.num_free == 1
    pool.release([block_id])
    assert pool.num_free == 1
    pool.check_integrity({block_id: 1})
    pool.release([block_id])
    assert pool.num_free == 2


def test_a_block_released_twice_is_an_error():
    pool = make_pool(2)
    [block_id] = pool.allocate(1)
    pool.release([block_id])
    with pytest.raises(AssertionError, match="released twice"):
        pool.release([block_id])


def test_promised_blocks_are_free_but_not_available():
    pool = make_pool(10)
    pool.promise(3)
    assert (pool.num_free, pool.num_available) == (10, 7)
    pool.allocate(7)
    with pytest.raises(AssertionError):
        pool.allocate(1)
    pool.end_promise(3)
    assert len(pool.allocate(3)) == 3


def test_a_cached_block_cannot_be_pinned_out_of_a_promise():
    pool = make_pool(3)
    cached = cache_blocks(pool, range(3))
    pool.promise(3)
    with pytest.raises(AssertionError):
        pool.retain(cached[0])


def test_the_first_block_with_a_hash_keeps_it():
    pool = make_pool(3)
    first, second = pool.allocate(2)
    pool.register(first, hash_of(1), ROOT)
    pool.register(second, hash_of(1), ROOT)
    assert pool.find(hash_of(1)) == first
    pool.release([second])
    pool.check_integrity({first: 1})


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30)), max_size=60))
def test_free_used_and_promised_always_add_up(operations: list[tuple[int, int]]):
    pool = make_pool(20)
    refs: dict[int, int] = {}
    for kind, number in operations:
        if kind == 0 and number <= pool.num_available:
            refs |= dict.fromkeys(pool.allocate(number), 1)
        elif kind == 1 and refs:
            block_id = sorted(refs)[number % len(refs)]
            pool.register(block_id, hash_of(block_id), ROOT)
            pool.release([block_id])
            refs[block_id] -= 1
        elif kind == 2 and pool.can_promise(number):
            pool.promise(number)
        elif kind == 3 and pool.num_available and (block_id := pool.find(hash_of(number))):
            pool.retain(block_id)
            refs[block_id] = refs.get(block_id, 0) + 1
        refs = {block_id: count for block_id, count in refs.items() if count}
        pool.check_integrity(refs)
        assert pool.num_free + len(refs) == 20
        assert pool.num_promised <= pool.num_free


def test_stored_hashes_are_reported_as_chains():
    log = KvEventLog()
    log.stored(hash_of(1), ROOT)
    log.stored(hash_of(2), hash_of(1))
    log.stored(hash_of(9), ROOT)
    assert log.take() == (
        b"",
        [StoredBlocks(ROOT, hash_of(1) + hash_of(2)), StoredBlocks(ROOT, hash_of(9))],
    )
    assert log.take() == (b"", [])


def test_a_hash_stored_and_removed_in_one_report_is_not_reported():
    log = KvEventLog()
    log.stored(hash_of(1), ROOT)
    log.removed(hash_of(1))
    assert log.take() == (b"", [])


def test_a_hash_removed_and_stored_again_is_reported_as_both():
    log = KvEventLog()
    log.removed(hash_of(1))
    log.stored(hash_of(1), ROOT)
    assert log.take() == (hash_of(1), [StoredBlocks(ROOT, hash_of(1))])
    log.removed(hash_of(1))
    log.stored(hash_of(1), ROOT)
    log.removed(hash_of(1))
    assert log.take() == (hash_of(1), [])

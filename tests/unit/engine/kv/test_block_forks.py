from baton.engine.kv.block_manager import BlockManager
from baton.engine.sequence.sequence import Sequence
from baton.testing.engine_driver import add_sequence

BLOCK = 4


def make_manager(num_blocks: int = 16) -> BlockManager:
    return BlockManager(num_blocks, BLOCK, "fake-model")


def computed(manager: BlockManager, num_tokens: int, seq_id: int = 1) -> Sequence:
    """A sequence whose tokens are all in the cache."""
    request = add_sequence(seq_id, range(num_tokens))
    seq = Sequence(request, seq_id, manager.root_hash(request))
    manager.allocate(seq, manager.match_prefix(seq))
    seq.num_computed_tokens = num_tokens
    manager.register_full_blocks(seq)
    return seq


def forked(manager: BlockManager, parent: Sequence, seq_id: int = 2) -> Sequence:
    tokens = parent.tokens(0, parent.num_tokens).tolist()
    child = Sequence(add_sequence(seq_id, tokens), seq_id, parent.table.hash_chain[0])
    manager.fork(parent, child)
    return child


def write(manager: BlockManager, seq: Sequence, token: int) -> list[tuple[int, int]]:
    """The sequence's next token, in the cache; returns what had to be copied."""
    seq.append(token)
    assert manager.can_grow((seq,))
    manager.grow(seq)
    seq.num_computed_tokens += 1
    manager.register_full_blocks(seq)
    return manager.take_block_copies()


def test_a_fork_refers_to_the_blocks_of_its_parent_and_takes_none():
    manager = make_manager()
    parent = computed(manager, 10)
    num_free = manager.num_free_blocks
    child = forked(manager, parent)
    assert child.table.ids.tolist() == parent.table.ids.tolist()
    assert child.num_computed_tokens == 10
    assert manager.num_free_blocks == num_free
    manager.check_integrity([parent, child])


def test_who_writes_into_a_shared_block_first_copies_it_and_the_last_one_does_not():
    manager = make_manager()
    parent = computed(manager, 10)
    children = [forked(manager, parent, seq_id) for seq_id in (2, 3)]
    shared = parent.table.ids.tolist()[2]
    first = write(manager, parent, 100)
    second = write(manager, children[0], 101)
    third = write(manager, children[1], 102)
    assert first == [(shared, parent.table.ids.tolist()[2])]
    assert second == [(shared, children[0].table.ids.tolist()[2])]
    assert third == []
    assert children[1].table.ids.tolist()[2] == shared
    assert len({seq.table.ids.tolist()[2] for seq in [parent, *children]}) == 3
    manager.check_integrity([parent, *children])


def test_full_blocks_are_never_copied():
    manager = make_manager()
    parent = computed(manager, 8)
    child = forked(manager, parent)
    assert write(manager, parent, 100) == []
    assert write(manager, child, 101) == []
    assert child.table.ids.tolist()[:2] == parent.table.ids.tolist()[:2]
    assert child.table.ids.tolist()[2] != parent.table.ids.tolist()[2]


def test_blocks_of_a_parent_that_are_not_computed_yet_are_not_shared():
    manager = make_manager()
    parent = computed(manager, 6)
    parent.table.extend(manager._pool.allocate(2))
    child = forked(manager, parent)
    assert child.table.num_blocks == 2
    assert write(manager, parent, 100) == [(child.table.ids.tolist()[1], parent.table.ids[1])]
    assert parent.table.num_blocks == 4


def test_a_shared_block_is_free_when_its_last_holder_is():
    manager = make_manager()
    parent = computed(manager, 10)
    child = forked(manager, parent)
    manager.free(parent)
    assert manager.num_free_blocks == 13
    assert write(manager, child, 100) == []
    manager.free(child)
    assert manager.num_free_blocks == 16
    manager.check_integrity([])


def test_growing_together_needs_a_block_for_each_writer_but_the_last():
    manager = make_manager(num_blocks=5)
    parent = computed(manager, 10)
    children = [forked(manager, parent, seq_id) for seq_id in (2, 3)]
    everyone = [parent, *children]
    for seq in everyone:
        seq.append(7)
    assert manager.can_grow(everyone)  # 2 copies, 2 blocks are free
    outsider = forked(manager, computed(manager, 0 + 3, seq_id=9), seq_id=4)
    assert not manager.can_grow(everyone)
    manager.free(outsider)


def test_full_blocks_of_forks_are_cached_under_their_own_tokens():
    manager = make_manager()
    parent = computed(manager, 6)
    child = forked(manager, parent)
    for token in (50, 51):
        write(manager, parent, token)
    for token in (60, 61):
        write(manager, child, token)
    manager.free(parent)
    manager.free(child)
    probe = add_sequence(5, [*range(6), 60, 61, 1])
    seq = Sequence(probe, 5, manager.root_hash(probe))
    assert len(manager.match_prefix(seq).cached_ids) == 2


def test_a_child_that_lost_its_blocks_begins_beside_its_parent():
    manager = make_manager()
    parent = computed(manager, 10)
    child = Sequence(add_sequence(2, range(17)), 2, parent.table.hash_chain[0])
    assert manager.num_blocks_beside(parent, child) == 3
    manager.allocate_beside(parent, child)
    assert child.table.ids.tolist()[:2] == parent.table.ids.tolist()[:2]
    assert (child.table.num_blocks, child.num_computed_tokens) == (5, 8)
    manager.check_integrity([parent, child])


def test_a_promise_for_forks_outlives_the_binding_and_ends_with_the_start():
    manager = make_manager(num_blocks=32)
    request = add_sequence(1, range(10), kind="remote")
    seq = Sequence(request, 1, manager.root_hash(request))
    match = manager.match_remote_prefix(seq, 100, num_forks=2)
    assert (match.num_new_blocks, match.num_fork_blocks) == (5, 6)
    assert match.num_free_needed == 11
    assert manager.can_promise(seq, match, 0)
    manager.promise(seq, match)
    assert manager.num_promised_blocks == 11
    manager.bind(seq)
    assert manager.num_promised_blocks == 6
    manager.end_promise(seq)
    assert (manager.num_promised_blocks, manager.num_available_blocks) == (0, 27)
    manager.free(seq)
    manager.check_integrity([])

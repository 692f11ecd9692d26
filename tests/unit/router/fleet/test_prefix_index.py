import tracemalloc
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.wire.failures import InvalidRequest
from services.router.fleet import prefix_index
from services.router.fleet.prefix_index import PrefixIndex, hashes_of


def names(*numbers: int) -> list[int]:
    return list(numbers)


def test_the_match_is_the_unbroken_beginning_that_the_worker_holds() -> None:
    index = PrefixIndex(100)
    index.stored("a", names(1, 2, 4))
    assert index.match(names(1, 2, 3, 4)).get("a", 0) == 2
    assert index.match(names(1)).get("unknown", 0) == 0
    assert index.match(names(9, 1, 2)) == {}


def test_long_prompts_match_to_the_block() -> None:
    index = PrefixIndex(1000)
    for length in (63, 64, 65, 128, 200):
        index.build("a", names(*range(length)))
        index.finish("a")
        assert index.match(names(*range(200))).get("a", 0) == length


@pytest.mark.parametrize("seed", range(10))
def test_workers_that_hold_beginnings_of_a_long_prompt_match_to_the_block(seed: int) -> None:
    random, prompt = Random(seed), names(*range(600))
    lengths = {str(number): random.randrange(1, 600) for number in range(20)}
    index = PrefixIndex(1000)
    for worker, length in lengths.items():
        index.stored(worker, prompt)
        index.removed(worker, prompt[length:])
    assert index.match(prompt) == lengths
    assert index.match(prompt[:300]) == {each: min(lengths[each], 300) for each in lengths}


def test_removed_blocks_match_no_more_and_others_stay() -> None:
    index = PrefixIndex(100)
    index.stored("a", names(1, 2, 3))
    index.stored("b", names(1, 2, 3))
    index.removed("a", names(2, 77))
    assert index.match(names(1, 2, 3)).get("a", 0) == 1
    assert index.match(names(1, 2, 3)).get("b", 0) == 3
    assert index.num_hashes == 5


def test_a_snapshot_replaces_what_was_known_of_that_worker_only() -> None:
    index = PrefixIndex(100)
    index.stored("a", names(1, 2))
    index.stored("b", names(1))
    index.build("a", names(5))
    index.finish("a")
    assert index.match(names(1)).get("a", 0) == 0
    assert index.match(names(5)).get("a", 0) == 1
    assert index.match(names(1)).get("b", 0) == 1


def test_a_snapshot_counts_when_it_is_whole_and_the_old_entries_do_until_then() -> None:
    index = PrefixIndex(100)
    index.stored("a", names(1, 2))
    index.build("a", names(5))
    index.stored("a", names(3))
    assert index.match(names(1, 2, 3)) == {"a": 3}
    index.build("a", names(6))
    assert index.match(names(5, 6)) == {}
    index.check_integrity()
    index.finish("a")
    assert index.match(names(1)) == {}
    assert index.match(names(5, 6)) == {"a": 2}
    index.check_integrity()


def test_a_snapshot_that_never_becomes_whole_leaves_nothing() -> None:
    index = PrefixIndex(100)
    index.stored("a", names(1))
    index.build("a", names(5))
    index.abandon("a")
    index.finish("a")
    index.check_integrity()
    index.sweep(100)
    assert index.match(names(1)) == {"a": 1}
    assert index.num_hashes == 1
    index.check_integrity()


def test_entries_that_count_no_more_are_dropped_little_by_little() -> None:
    index = PrefixIndex(1000)
    index.stored("a", range(100))
    index.stored("b", range(50, 150))
    index.clear("a")
    assert index.match(range(100)) == {}
    assert index.num_hashes == 100
    for _ in range(10):
        index.stored("c", range(40))
        index.sweep(30)
        index.check_integrity()
        assert index.match(range(50, 150)) == {"b": 100}
        assert index.match(range(60)) == {"c": 40}
    assert index.num_bits == 3
    index.stored("d", range(7))
    assert index.number("d") == 0


def test_the_digest_is_that_of_the_workers_own_cache_though_old_blocks_had_to_go() -> None:
    index = PrefixIndex(3)
    index.stored("a", names(1, 2, 4))
    assert index.digest("a") == (3, 1 ^ 2 ^ 4)
    index.stored("a", names(8, 16))
    assert index.digest("a") == (5, 1 ^ 2 ^ 4 ^ 8 ^ 16)
    index.removed("a", names(2, 16))
    assert index.digest("a") == (3, 1 ^ 4 ^ 8)
    index.removed("a", names(32))
    assert index.digest("b") == (0, 0)


def test_a_workers_oldest_blocks_make_room_for_its_new_ones() -> None:
    index = PrefixIndex(3)
    assert index.stored("a", names(1, 2)) == 0
    assert index.stored("b", names(1, 2, 3)) == 0
    assert index.stored("a", names(3, 4)) == 1
    assert index.match(names(1)) == {"b": 1}
    assert index.match(names(2, 3, 4)) == {"a": 3, "b": 2}
    index.check_integrity()


def test_one_worker_takes_no_place_from_another() -> None:
    index = PrefixIndex(1000)
    for number in range(40):
        index.stored(str(number), range(number * 1000, (number + 1) * 1000))
    assert index.num_hashes == 40_000
    assert index.match(range(39_000, 40_000)) == {"39": 1000}


def test_a_snapshot_that_is_too_large_keeps_its_end() -> None:
    index = PrefixIndex(3)
    assert index.build("a", names(1, 2, 3, 4, 5)) == 2
    index.finish("a")
    assert index.match(names(3, 4, 5)) == {"a": 3}
    index.check_integrity()


def test_a_block_that_came_back_is_as_old_as_its_return() -> None:
    index = PrefixIndex(100)
    index.stored("a", range(100))
    index.removed("a", range(1, 100))
    index.removed("a", names(0))
    index.stored("a", range(200, 299))
    index.stored("a", names(0))
    index.removed("a", range(200, 290))
    index.stored("a", range(300, 390))
    index.check_integrity()
    index.stored("a", range(400, 409))
    assert index.match(names(0)) == {"a": 1}


def test_a_long_log_is_rewritten_a_part_at_a_time(monkeypatch) -> None:
    monkeypatch.setattr(prefix_index, "_TIDIED", 50)
    random, index = Random(1), PrefixIndex(300)
    held: dict[int, None] = {}
    for _ in range(1000):
        new = names(*random.sample(range(1000), 10))
        index.stored("a", new)
        held |= dict.fromkeys(new)
        gone = random.sample(list(held), min(len(held) - 1, 9))
        index.removed("a", gone)
        held = {each: None for each in held if each not in gone}
        index.check_integrity()
        assert index.digest("a")[0] == len(held)


def test_hashes_on_the_wire_count_by_their_last_bytes() -> None:
    one, other = hashes_of(bytes(16) + bytes(15) + b"\x01")
    assert one != other
    assert hashes_of(b"") == []
    with pytest.raises(InvalidRequest):
        hashes_of(bytes(17))


def test_an_entry_takes_at_most_130_bytes() -> None:
    random = Random(1)
    common = hashes_of(random.randbytes(16 * 32))
    tracemalloc.start()
    try:
        index = PrefixIndex(1 << 16)
        for number in range(64):
            index.stored(str(number), common)
            index.stored(str(number), hashes_of(random.randbytes(16 * 2_000)))
        num_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert num_bytes <= 130 * index.num_hashes


operation = st.tuples(
    st.sampled_from(["stored", "removed", "build", "finish", "sweep", "clear"]),
    st.sampled_from(["a", "b", "c"]),
    st.lists(st.integers(0, 9), max_size=6),
)


@given(st.lists(operation, max_size=40))
def test_the_index_agrees_with_plain_sets_under_any_events(operations) -> None:
    index = PrefixIndex(1000)
    model: dict[str, set[int]] = {}
    built: dict[str, set[int]] = {}
    for name, worker, numbers in operations:
        held = model.setdefault(worker, set())
        if name == "build":
            built.setdefault(worker, set()).update(numbers)
        if name == "finish" and worker in built:
            model[worker] = built.pop(worker)
        if name == "clear":
            held.clear()
        if name == "stored":
            held.update(numbers)
        if name == "removed":
            held.difference_update(numbers)
        if name == "sweep":
            index.sweep(len(numbers))
        elif name in ("clear", "finish"):
            getattr(index, name)(worker)
        else:
            getattr(index, name)(worker, names(*numbers))
        index.check_integrity()
    for worker, held in model.items():
        prompt = names(*range(10))
        expected = next((i for i, h in enumerate(prompt) if h not in held), len(prompt))
        assert index.match(prompt).get(worker, 0) == expected

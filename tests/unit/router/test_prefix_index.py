from hypothesis import given
from hypothesis import strategies as st

from services.router.prefix_index import PrefixIndex


def names(*numbers: int) -> list[bytes]:
    return [number.to_bytes(16, "big") for number in numbers]


def test_the_match_is_the_unbroken_beginning_that_the_worker_holds() -> None:
    index = PrefixIndex(100)
    index.stored("a", names(1, 2, 4))
    assert index.match(names(1, 2, 3, 4)).get("a", 0) == 2
    assert index.match(names(1)).get("unknown", 0) == 0
    assert index.match(names(9, 1, 2)) == {}


def test_long_prompts_match_to_the_block() -> None:
    index = PrefixIndex(1000)
    for length in (63, 64, 65, 128, 200):
        index.replace("a", names(*range(length)))
        assert index.match(names(*range(200))).get("a", 0) == length


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
    index.replace("a", names(5))
    assert index.match(names(1)).get("a", 0) == 0
    assert index.match(names(5)).get("a", 0) == 1
    assert index.match(names(1)).get("b", 0) == 1


def test_what_exceeds_the_cap_is_left_out_and_counted() -> None:
    index = PrefixIndex(3)
    assert index.stored("a", names(1, 2)) == 0
    assert index.stored("b", names(1, 2, 3)) == 2
    assert index.match(names(1, 2, 3)).get("b", 0) == 1
    index.clear("a")
    assert index.stored("b", names(2, 3)) == 0
    index.check_integrity()


operation = st.tuples(
    st.sampled_from(["stored", "removed", "replace", "clear"]),
    st.sampled_from(["a", "b", "c"]),
    st.lists(st.integers(0, 9), max_size=6),
)


@given(st.lists(operation, max_size=40))
def test_the_index_agrees_with_plain_sets_under_any_events(operations) -> None:
    index = PrefixIndex(1000)
    model: dict[str, set[bytes]] = {}
    for name, worker, numbers in operations:
        held = model.setdefault(worker, set())
        if name in ("replace", "clear"):
            held.clear()
        if name in ("stored", "replace"):
            held.update(names(*numbers))
        if name == "removed":
            held.difference_update(names(*numbers))
        if name == "clear":
            index.clear(worker)
        else:
            getattr(index, name)(worker, names(*numbers))
        index.check_integrity()
    for worker, held in model.items():
        prompt = names(*range(10))
        expected = next((i for i, h in enumerate(prompt) if h not in held), len(prompt))
        assert index.match(prompt).get(worker, 0) == expected

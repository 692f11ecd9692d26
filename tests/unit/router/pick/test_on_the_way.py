"""Prompts that are computed soon draw requests with the same beginning to the same worker."""

import asyncio
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.testing.virtual_clock import VirtualClock, run_virtual
from services.router.pick.on_the_way import (
    STRIDE_TOKENS,
    PromptsOnTheWay,
    SentMarks,
    SentPrompt,
)

BLOCK = 256  # two blocks a stride


@pytest.fixture
def run(clock):
    return lambda scenario: run_virtual(scenario(), clock)


def test_a_prompt_counts_in_steps_until_it_should_be_computed(clock) -> None:
    prompts = PromptsOnTheWay(clock)
    prompts.take(SentPrompt("a", range(100, 107), 0, 2.0), BLOCK)
    assert prompts.match(range(100, 107), BLOCK) == {"a": 6}
    assert prompts.match([100, 101, 102, 7], BLOCK) == {"a": 2}
    assert prompts.match([100], BLOCK) == {}
    assert prompts.match([5, 6, 7, 8], BLOCK) == {}
    clock.advance(2.9)
    assert prompts.match(range(100, 107), BLOCK) == {"a": 6}
    clock.advance(0.2)
    assert prompts.match(range(100, 107), BLOCK) == {}


def test_of_two_prompts_with_one_beginning_the_later_keeps_it(clock) -> None:
    prompts = PromptsOnTheWay(clock)
    prompts.take(SentPrompt("a", range(4), 0, 1.0), BLOCK)
    prompts.take(SentPrompt("a", range(8), 0, 5.0), BLOCK)
    prompts.take(SentPrompt("b", range(2), 0, 5.0), BLOCK)
    clock.advance(3.0)
    assert prompts.match(range(4), BLOCK) == {"a": 4, "b": 2}


def test_blocks_that_were_cached_already_are_not_counted(clock) -> None:
    prompts = PromptsOnTheWay(clock)
    prompts.take(SentPrompt("a", range(8), 4, 1.0), BLOCK)
    assert prompts.match(range(4), BLOCK) == {}
    assert prompts.match(range(6), BLOCK) == {"a": 6}


def test_a_block_that_a_peer_names_twice_does_no_harm(clock) -> None:
    prompts = PromptsOnTheWay(clock)
    prompts.expect(SentMarks("a", [1, 1], 1.0))
    prompts.expect(SentMarks("b", [1], 5.0))
    clock.advance(3.0)
    assert prompts.match([0, 1], BLOCK) == {"b": 2}
    clock.advance(4.0)
    assert prompts.match([0, 1], BLOCK) == {}


def path(text: str) -> list[int]:
    """The hashes of a prompt of which each letter is a stride: each covers all before it."""
    return [int.from_bytes(text[: end + 1].encode(), "big") for end in range(len(text))]


paths = st.text("xy", min_size=1, max_size=5)


@given(st.lists(st.tuples(st.sampled_from("ab"), paths, st.integers(0, 4), st.integers(1, 5))))
def test_workers_are_expected_to_have_what_any_prompt_will_leave_there(prompts) -> None:
    clock = VirtualClock()
    on_the_way = PromptsOnTheWay(clock)
    for endpoint, text, num_cached, expected_s in prompts:
        on_the_way.take(SentPrompt(endpoint, path(text), num_cached, expected_s), STRIDE_TOKENS)
    for now in range(6):
        for wanted in {text + more for _, text, _, _ in prompts for more in ("", "z")}:
            coming: dict[str, int] = {}
            for endpoint, text, num_cached, expected_s in prompts:
                num_common = sum(map(str.__eq__, accumulate(text), accumulate(wanted)))
                if num_common > num_cached and expected_s + 1 > now:
                    coming[endpoint] = max(num_common, coming.get(endpoint, 0))
            assert on_the_way.match(path(wanted), STRIDE_TOKENS) == coming
        clock.advance(1.0)


@pytest.mark.parametrize("num_workers", [4, 40])
def test_two_requests_with_one_new_beginning_go_to_one_worker(
    router, run, hashes, num_workers: int
) -> None:
    async def scenario() -> None:
        fleet = router()
        decodes = [fleet.decode(f"d{number}") for number in range(4)]
        workers = [fleet.prefill(f"p{number}") for number in range(num_workers)]
        prompt = {"num_prompt_tokens": 1200, "block_hashes": hashes(*range(75))}
        first = await fleet.pick("r1", **prompt)
        for worker in workers:
            worker.load("r1", num_queued_prefill_tokens=10)
        second = await fleet.pick("r2", **prompt)
        assert second.prefill.worker_id == first.prefill.worker_id
        assert second.predicted_cached_tokens == 1024
        for _ in range(5):  # longer than the prompt should take
            await asyncio.sleep(0.5)
            for worker in decodes + workers:
                worker.load("r2")
        assert (await fleet.pick("r3", **prompt)).predicted_cached_tokens == 0

    run(scenario)

"""Sequences that want logprobs of their prompt: each token is reported once, in bounded steps."""

import numpy as np
import pytest

from baton.engine.protocol.batch import SampleRow
from baton.engine.protocol.messages import Credit, SamplingParams, TokenLogprobs
from baton.engine.step.step_plan import MAX_PROMPT_LOGPROB_TOKENS
from baton.testing.engine_driver import EngineDriver, add_sequence
from baton.testing.fake_runner import FakeRunner

BLOCK = 4


def make_driver(num_blocks: int = 200, max_model_len: int = 600, **sizes: int) -> EngineDriver:
    runner = FakeRunner(block_size=BLOCK, max_model_len=max_model_len)
    return EngineDriver(runner, num_blocks=num_blocks, **sizes)


def run_to_end(driver: EngineDriver, *seq_ids: int) -> dict[int, list[TokenLogprobs]]:
    """Steps to the end; the logprobs of prompt tokens by sequence."""
    reported: dict[int, list[TokenLogprobs]] = {seq_id: [] for seq_id in seq_ids}
    while True:
        for one in driver.events.prompt_logprobs:
            reported[one.seq_id].append(one)
        if not driver.engine.has_work:
            return reported
        driver.step()


def assert_reported_once(reported: list[TokenLogprobs], prompt: range) -> None:
    assert [one.index for one in reported] == list(range(1, len(prompt)))
    assert [one.token_id for one in reported] == list(prompt)[1:]


def test_every_prompt_token_but_the_first_is_reported_once_and_the_output_is_the_same():
    driver = make_driver()
    driver.step(add_sequence(1, range(10, 40), num_prompt_logprobs=2, num_logprobs=1))
    reported = run_to_end(driver, 1)
    assert_reported_once(reported[1], range(10, 40))
    assert all(len(one.top_ids) == len(one.top_logprobs) == 2 for one in reported[1])
    assert driver.tokens[1] == driver.lone_run(range(10, 40))


@pytest.mark.parametrize(("num_blocks", "max_step_tokens"), [(200, 20), (200, 64), (12, 64)])
def test_a_prompt_may_fill_the_context_where_one_token_follows(
    num_blocks: int, max_step_tokens: int
):
    sizes = {"max_step_tokens": max_step_tokens, "max_num_seqs": 4}
    driver = make_driver(num_blocks, max_model_len=48, **sizes)
    driver.step(add_sequence(1, range(48), max_tokens=1, num_prompt_logprobs=0))
    assert_reported_once(run_to_end(driver, 1)[1], range(48))
    assert len(driver.tokens[1]) == 1
    for seq_id, (prompt, max_tokens) in enumerate([(range(48), 2), (range(49), 1)], 2):
        driver.step(add_sequence(seq_id, prompt, max_tokens=max_tokens, num_prompt_logprobs=0))
        [refused] = driver.events.refused
        assert refused.reason == "context_length_exceeded"


def test_a_prompt_with_logprobs_is_not_taken_from_the_cache_but_enters_it():
    driver = make_driver()
    driver.step(add_sequence(1, range(40), max_tokens=1))
    driver.step(add_sequence(2, range(40), max_tokens=1, num_prompt_logprobs=0))
    assert driver.events.started[0].num_cached_tokens == 0
    assert_reported_once(run_to_end(driver, 2)[2], range(40))
    driver.step(add_sequence(3, range(40), max_tokens=1))
    assert driver.events.started[0].num_cached_tokens == 36


def test_the_prompt_logprob_rows_of_a_step_are_bounded_over_all_sequences():
    driver = make_driver(max_step_tokens=512)
    prompts = {1: range(300), 2: range(100, 150), 3: range(200, 203)}
    driver.step(*[add_sequence(i, p, num_prompt_logprobs=0) for i, p in prompts.items()])
    reported: dict[int, list[TokenLogprobs]] = {1: [], 2: [], 3: []}
    while driver.engine.has_work:
        assert len(driver.events.prompt_logprobs) <= MAX_PROMPT_LOGPROB_TOKENS
        for one in driver.events.prompt_logprobs:
            reported[one.seq_id].append(one)
        driver.step()
    for seq_id, prompt in prompts.items():
        assert_reported_once(reported[seq_id], prompt)
        assert driver.tokens[seq_id] == driver.lone_run(prompt)


def test_a_sequence_without_prompt_logprobs_is_not_held_up_by_one_with_them():
    driver = make_driver(max_step_tokens=512)
    driver.step(
        add_sequence(1, range(300), num_prompt_logprobs=0),
        add_sequence(2, range(100, 200), num_prompt_logprobs=0),
        add_sequence(3, range(200, 300), max_tokens=1),
    )
    assert driver.finished == {3: "length"}


def test_a_recomputation_reports_nothing_twice():
    # Two sequences of 10 blocks each in 12 blocks: the second is preempted in mid-answer.
    driver = make_driver(num_blocks=12, max_model_len=48)
    adds = [add_sequence(i, range(i, i + 20), max_tokens=20, num_prompt_logprobs=0) for i in (1, 2)]
    driver.step(*adds)
    num_preemptions = 0
    reported: dict[int, list[TokenLogprobs]] = {1: [], 2: []}
    while driver.engine.has_work:
        num_preemptions += driver.events.num_preemptions
        for one in driver.events.prompt_logprobs:
            reported[one.seq_id].append(one)
        driver.step()
    assert num_preemptions > 0
    for seq_id in (1, 2):
        assert_reported_once(reported[seq_id], range(seq_id, seq_id + 20))
        assert driver.tokens[seq_id] == driver.lone_run(range(seq_id, seq_id + 20), 20)


def test_a_prompt_of_one_token_has_no_prompt_logprobs():
    driver = make_driver()
    driver.step(add_sequence(1, [5], num_prompt_logprobs=3))
    assert run_to_end(driver, 1)[1] == []
    assert driver.tokens[1] == driver.lone_run([5])


def test_output_logprobs_come_with_their_tokens():
    driver = make_driver()
    driver.step(add_sequence(1, range(9), max_tokens=3, num_logprobs=1, credit=2))
    reported = list(driver.events.logprobs)
    while driver.engine.has_work:
        driver.step()
        reported += driver.events.logprobs
    driver.step(Credit(1, 3))
    reported += driver.events.logprobs
    assert [(one.seq_id, one.index, one.token_id) for one in reported] == [
        (1, index, token) for index, token in enumerate(driver.tokens[1])
    ]


@pytest.mark.parametrize("named", [{"logit_bias": ((1000, 1.0),)}, {"stop_token_ids": (1000,)}])
def test_a_token_id_that_the_model_does_not_have_is_refused(named):
    driver = make_driver()
    driver.step(add_sequence(1, range(9), **named))
    assert driver.events.refused[0].reason == "invalid_token_id"


def test_the_fake_runner_keeps_to_min_tokens_and_masks():
    runner = FakeRunner(vocab_size=40, mean_output_tokens=2)
    params = SamplingParams(30, min_tokens=20, stop_token_ids=tuple(range(10)))
    assert len(runner.lone_run(range(5), params)) >= 20
    masks = np.zeros((1, 2), np.int32)
    masks[0, 1] = 0b100
    row = SampleRow(0, SamplingParams(1), 0, 0, mask_row=0)
    assert runner._sample([1, 2], row, masks) == 34

"""Drafts change how many steps an output takes, and nothing else."""

import random
from typing import Any

import pytest

from baton.engine.protocol.messages import Credit, StepEvents
from baton.engine.step.speculation import MAX_STEP_DRAFT_TOKENS
from baton.testing.engine_driver import EngineDriver, add_sequence
from baton.testing.fake_runner import FakeRunner
from baton.wire.prefix_hash import HASH_BYTES

REPETITIVE = [7, 8, 9, 10, 11] * 8


class ParrotRunner(FakeRunner):
    """Repeats what stands `period` tokens back, so that drafts are right."""

    period = 5

    def _draw(self, states, row):  # type: ignore[no-untyped-def]
        return REPETITIVE[(len(REPETITIVE) + row.output_index) % self.period]


def drive(runner: FakeRunner, num_draft_tokens: int, **sizes: int) -> EngineDriver:
    sizes = {"num_blocks": 64, "max_step_tokens": 128, **sizes}
    return EngineDriver(runner, num_draft_tokens=num_draft_tokens, **sizes)


def run(driver: EngineDriver, max_steps: int = 500) -> list[StepEvents]:
    events = []
    for _ in range(max_steps):
        events.append(driver.step())
        if not driver.engine.has_work:
            return events
    raise AssertionError("still busy")


def test_right_guesses_save_steps():
    driver = drive(ParrotRunner(), 4)
    driver.step(add_sequence(1, REPETITIVE, max_tokens=50))
    events = run(driver)
    assert driver.tokens[1] == (REPETITIVE * 2)[:50]
    assert len(events) < 15
    assert (
        sum(event.num_accepted_tokens for event in events)
        == sum(e.num_draft_tokens for e in events)
        > 35
    )


@pytest.mark.parametrize("seed", range(3))
def test_outputs_are_the_same_whatever_is_guessed(seed: int):
    """Few tokens, so that guesses are often right; little room, so that sequences are preempted."""
    rng = random.Random(seed)
    runner = FakeRunner(block_size=16, vocab_size=4, mean_output_tokens=60)
    driver = drive(runner, 5, num_blocks=11, max_step_tokens=48, max_num_seqs=5)
    requests = {}
    num_accepted_tokens = num_preemptions = 0
    for seq_id in range(1, 9):
        prompt = [rng.randrange(3) for _ in range(rng.randrange(1, 90))]
        fields = {
            "max_tokens": rng.randrange(20, 70),
            "temperature": 1.0,
            "seed": rng.randrange(100),
            "stop_token_ids": (1,) if rng.random() < 0.1 else (),
        }
        requests[seq_id] = add_sequence(seq_id, prompt, credit=rng.randrange(20, 100), **fields)
    pending = list(requests.values())
    credit = dict.fromkeys(requests, 0)
    while pending or len(driver.finished) < len(requests):
        commands = [pending.pop()] if pending else []
        for seq_id in requests:
            if rng.random() < 0.2:
                credit[seq_id] += 40
                commands.append(Credit(seq_id, credit[seq_id]))
        events = driver.step(*commands)
        num_accepted_tokens += events.num_accepted_tokens
        num_preemptions += events.num_preemptions
    for seq_id, request in requests.items():
        prompt = list(memoryview(request.token_ids).cast("I"))
        assert driver.tokens[seq_id] == runner.lone_run(prompt, request.sampling), seq_id
    assert num_accepted_tokens > 0
    assert num_preemptions > 0


def test_rejected_guesses_are_never_found_in_the_prefix_cache():
    """FakeRunner notices wrong KV in any block that a later sequence hits."""
    runner = FakeRunner(block_size=16, vocab_size=4)
    driver = drive(runner, 5)
    prompt = [0, 1, 2] * 10
    driver.step(add_sequence(1, prompt, max_tokens=100, temperature=1.0, seed=1, ignore_eos=True))
    events = run(driver)
    assert sum(e.num_accepted_tokens for e in events) < sum(e.num_draft_tokens for e in events)
    longer = prompt + driver.tokens[1]
    started = driver.step(add_sequence(2, longer, max_tokens=9)).started
    assert started[0].num_cached_tokens == len(longer) // 16 * 16
    driver.run()
    assert driver.tokens[2] == driver.lone_run(longer, 9)


def test_a_block_that_right_guesses_fill_can_be_hit_from_the_same_step_on():
    driver = drive(ParrotRunner(), 8)
    driver.step(add_sequence(1, REPETITIVE, max_tokens=60))
    num_cached, num_accepted = 0, 0
    while not driver.finished:
        num_cached += sum(len(stored.hashes) // HASH_BYTES for stored in driver.events.stored)
        num_computed = len(REPETITIVE) + len(driver.tokens[1]) - 1
        assert num_cached == num_computed // driver.runner.kv_spec.block_size
        num_accepted += driver.step().num_accepted_tokens
    assert num_cached > len(REPETITIVE) // driver.runner.kv_spec.block_size
    assert num_accepted > 40


@pytest.mark.parametrize(
    ("fields", "num_tokens", "reason"),
    [
        ({}, 14, "stop"),
        ({"ignore_eos": True, "max_tokens": 33}, 33, "length"),
        ({"stop_token_ids": (12,)}, 5, "stop"),
        *[({"max_tokens": num}, num, "length") for num in range(1, 13)],
    ],
)
def test_a_sequence_ends_inside_a_right_guess(fields: dict[str, Any], num_tokens: int, reason: str):
    class Ending(FakeRunner):
        """Repeats a pattern of 15 tokens, the last of which is the end token."""

        def _draw(self, states, row):  # type: ignore[no-untyped-def]
            return self.pattern[(row.output_index + 1) % 15]

    runner = Ending()
    runner.pattern = [*range(7, 21), runner.eos_token_ids[0]]
    driver = drive(runner, 8)
    prompt = runner.pattern * 2 + runner.pattern[:1]
    driver.step(add_sequence(1, prompt, **{"max_tokens": 100, **fields}))
    events = run(driver)
    assert driver.tokens[1] == (runner.pattern * 3)[1 : num_tokens + 1]
    assert driver.finished[1] == reason
    assert sum(event.num_accepted_tokens for event in events) >= (num_tokens - 1) // 2
    assert driver.num_free_blocks == 64


def test_guesses_stay_within_the_credit():
    driver = drive(ParrotRunner(), 8)
    driver.step(add_sequence(1, REPETITIVE, max_tokens=100, credit=0))
    for credit in (1, 3, 4, 9, 20):
        driver.step(Credit(1, credit))
        run(driver)
        assert len(driver.tokens[1]) == credit


def test_guesses_stay_within_the_context_length():
    runner = ParrotRunner(max_model_len=len(REPETITIVE) + 13)
    driver = drive(runner, 8)
    driver.step(add_sequence(1, REPETITIVE, max_tokens=100))
    run(driver)
    assert driver.finished[1] == "length"
    assert len(driver.tokens[1]) == 13


def test_guesses_leave_the_step_its_budget_and_prefill_its_chunk():
    driver = drive(ParrotRunner(), 8, max_step_tokens=40, max_num_seqs=4)
    commands = [add_sequence(seq_id, REPETITIVE, max_tokens=60) for seq_id in range(1, 4)]
    events = [driver.step(*commands), driver.step(add_sequence(9, list(range(300)), max_tokens=2))]
    events += run(driver)
    assert max(event.num_step_tokens for event in events) <= 40
    assert driver.finished == {1: "length", 2: "length", 3: "length", 9: "length"}


def test_guesses_take_no_block_from_a_sequence_that_may_grow():
    driver = drive(ParrotRunner(), 8, num_blocks=8)
    commands = [add_sequence(seq_id, REPETITIVE, max_tokens=16) for seq_id in (1, 2)]
    driver.step(*commands)
    events = run(driver)
    assert sum(event.num_preemptions for event in events) == 0
    assert [len(driver.tokens[seq_id]) for seq_id in (1, 2)] == [16, 16]


def test_wrong_guesses_become_rare():
    class Unlucky(FakeRunner):
        """Never what was there before, although the last three tokens were."""

        def _draw(self, states, row):  # type: ignore[no-untyped-def]
            return (1, 2, 3, 100 + row.output_index)[row.output_index % 4]

    driver = drive(Unlucky(), 4, num_blocks=128)
    driver.step(add_sequence(1, [1, 2, 3, 4], max_tokens=160))
    events = run(driver)
    assert 0 < sum(event.num_draft_tokens for event in events) < 40


def test_a_large_batch_gets_few_guesses():
    driver = drive(ParrotRunner(), 8, num_blocks=512, max_step_tokens=512, max_num_seqs=64)
    commands = [add_sequence(seq_id, REPETITIVE, max_tokens=30) for seq_id in range(1, 33)]
    driver.step(*commands)
    events = run(driver)
    assert max(event.num_draft_tokens for event in events) == MAX_STEP_DRAFT_TOKENS


def test_nothing_is_guessed_unless_asked_for():
    driver = drive(ParrotRunner(), 0)
    driver.step(add_sequence(1, REPETITIVE, max_tokens=20))
    assert sum(event.num_draft_tokens for event in run(driver)) == 0

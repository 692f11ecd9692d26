"""The choice of the next step: places of the batch, blocks that are kept, blocks that are taken."""

import msgspec
import pytest

from baton.engine.protocol.batch import StepBatch, StepResult
from baton.engine.protocol.messages import Abort, Bind, Credit, Fork, Start
from baton.engine.step.chunk_policy import ChunkPolicy
from baton.engine.step.scheduler import MAX_MISSED
from baton.engine.step.step_plan import MAX_PROMPT_LOGPROB_TOKENS
from baton.testing.engine_driver import EngineDriver, add_sequence
from baton.testing.fake_runner import FakeRunner
from baton.testing.virtual_clock import VirtualClock

BLOCK = 4


def make_driver(num_blocks: int = 64, **sizes: int) -> EngineDriver:
    return EngineDriver(
        FakeRunner(block_size=BLOCK, max_model_len=400), num_blocks=num_blocks, **sizes
    )


def started(driver: EngineDriver) -> list[int]:
    """Sequences that started in the last step."""
    return [each.seq_id for each in driver.events.started]


def computed(driver: EngineDriver) -> set[int]:
    """Sequences that brought a token in the last step."""
    return set(driver.events.token_seq_ids)


# Places of the batch.


def test_parked_sequences_leave_their_places_and_share_them_when_all_come_back() -> None:
    driver = make_driver(max_num_seqs=2, max_step_tokens=16)
    driver.step(add_sequence(1, range(4), credit=1), add_sequence(2, range(4), credit=1))
    driver.step(add_sequence(3, range(4)), add_sequence(4, range(4)))
    assert started(driver) == [3, 4]
    driver.step(Credit(1, 8), Credit(2, 8))
    assert computed(driver) == {1, 2}
    while driver.engine.has_work:
        driver.step()
        assert driver.events.num_step_seqs <= 2
    assert list(driver.finished) == [1, 2, 3, 4]


def test_a_prompt_lengthens_steps_of_streams_whose_equal_it_becomes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[int, bool]] = []

    def note(policy: ChunkPolicy, num_decodes: int, may_lengthen: bool) -> int:
        told.append((num_decodes, may_lengthen))
        return policy.allowed_tokens(num_decodes, may_lengthen)

    monkeypatch.setattr(ChunkPolicy, "max_prefill_tokens", note)
    driver = make_driver(max_num_seqs=4, max_step_tokens=16)
    driver.step(add_sequence(1, range(4), max_tokens=99))
    driver.step(add_sequence(2, range(40), priority=-1))
    driver.step(add_sequence(3, range(40)))
    assert told == [(0, True), (1, False), (1, True)]
    driver.step(Abort(2), Abort(3))
    driver.step(add_sequence(4, range(40), max_tokens=1))
    driver.step(Abort(4), add_sequence(5, range(40), kind="prefill"))
    assert told[-2:] == [(1, False)] * 2
    driver.step(Abort(5), add_sequence(6, range(40)), add_sequence(7, range(9), credit=0))
    assert told[-1] == (1, True)
    driver.step(Abort(6), add_sequence(8, range(40), priority=-1))
    assert told[-1] == (1, False), "what is parked, and more important, is not read"


def test_a_sequence_without_a_place_misses_a_few_steps_only() -> None:
    driver = make_driver(max_num_seqs=2, max_step_tokens=16)
    driver.step(
        add_sequence(1, range(4), credit=1, max_tokens=90),
        add_sequence(2, range(4), credit=1, max_tokens=90),
    )
    driver.step(add_sequence(3, range(4), max_tokens=60), add_sequence(4, range(4), max_tokens=60))
    driver.step(Credit(1, 90), Credit(2, 90))
    num_missed, most_missed = dict.fromkeys((3, 4), 0), 0
    while 1 not in driver.finished:
        driver.step()
        assert driver.events.num_step_seqs <= 2
        for seq_id in num_missed:
            num_missed[seq_id] = 0 if seq_id in computed(driver) else num_missed[seq_id] + 1
        most_missed = max(most_missed, *num_missed.values())
    assert most_missed <= MAX_MISSED


def test_decodes_that_take_turns_also_take_each_others_blocks() -> None:
    driver = make_driver(num_blocks=20, max_num_seqs=2, max_step_tokens=16)
    asked = {"max_tokens": 40}
    driver.step(
        add_sequence(1, range(4), credit=1, **asked), add_sequence(2, range(4), credit=1, **asked)
    )
    driver.step(add_sequence(3, range(4), **asked), add_sequence(4, range(4), **asked))
    driver.step(Credit(1, 40), Credit(2, 40))
    driver.run()
    assert set(driver.finished) == {1, 2, 3, 4}
    assert {len(tokens) for tokens in driver.tokens.values()} == {40}


def test_a_search_waits_until_all_its_beams_have_places() -> None:
    driver = make_driver(max_num_seqs=4, max_step_tokens=64)
    forks = (Fork(11, 1), Fork(12, 2))
    driver.step(add_sequence(1, range(4), credit=1), add_sequence(2, range(4), credit=1))
    driver.step(add_sequence(10, range(9), forks=forks, beam_width=3, max_tokens=6))
    assert started(driver) == [10]
    driver.step(Credit(1, 4), Credit(2, 4))
    assert computed(driver) == {1, 2}
    while driver.engine.has_work:
        driver.step()
        assert driver.events.num_step_seqs <= 4
    assert set(driver.finished) == {10, 11, 12}
    driver.step(Credit(1, 8), Credit(2, 8))
    driver.run()
    assert set(driver.finished) == {1, 2, 10, 11, 12}


def test_a_suspect_that_waits_takes_no_place_of_those_that_run_meanwhile() -> None:
    driver = make_driver(max_num_seqs=2, max_step_tokens=16)
    driver.step(add_sequence(1, range(4), max_tokens=6), add_sequence(2, range(4), max_tokens=9))
    driver.step(msgspec.structs.replace(add_sequence(3, range(4)), is_suspect=True))
    while 1 not in driver.finished:
        assert started(driver) == []
        assert driver.events.load.num_running <= 2
        driver.step()
    driver.run()
    assert list(driver.finished) == [1, 2, 3]


def test_the_first_tokens_of_a_prefill_with_many_choices_need_one_place() -> None:
    driver = make_driver(max_num_seqs=2)
    forks = tuple(Fork(seq_id, seq_id - 1) for seq_id in range(2, 7))
    driver.step(add_sequence(1, range(9), kind="prefill", forks=forks))
    assert computed(driver) == {1, 2, 3, 4, 5, 6}


def test_a_step_judges_so_many_prompt_tokens_and_others_pass_the_next_prompt() -> None:
    driver = make_driver(num_blocks=128)
    judged = {"num_prompt_logprobs": 0, "max_tokens": 2}
    driver.step(
        add_sequence(1, range(MAX_PROMPT_LOGPROB_TOKENS), **judged),
        add_sequence(2, range(50, 60), **judged),
        add_sequence(3, range(70, 80)),
    )
    assert started(driver) == [1, 3]
    assert driver.events.num_step_seqs == 2
    driver.step()
    assert started(driver) == [2]
    driver.run()
    assert driver.num_prompt_logprobs == {1: MAX_PROMPT_LOGPROB_TOKENS - 1, 2: 9}


def test_tokens_that_decode_are_not_queued_for_prefill() -> None:
    driver = make_driver(max_num_seqs=4, max_step_tokens=8)
    driver.step(add_sequence(1, range(4)), add_sequence(2, range(20, 40)))
    assert driver.events.load.num_queued_prefill_tokens == 20 - 4
    while 2 not in driver.tokens:
        driver.step()
    assert driver.events.load.num_queued_prefill_tokens == 0


# Turns of suspects.


def test_a_suspect_without_credit_does_not_keep_the_next_one_from_its_turns() -> None:
    driver = make_driver()
    parked = add_sequence(1, range(9), credit=1, max_tokens=3)
    other = add_sequence(2, range(9), max_tokens=3)
    driver.step(*(msgspec.structs.replace(add, is_suspect=True) for add in (parked, other)))
    driver.run()
    assert driver.finished == {2: "length"}
    driver.step(Credit(1, 9))
    driver.run()
    assert driver.finished == {2: "length", 1: "length"}


def test_a_suspect_that_was_prefilled_elsewhere_shares_no_step_at_first() -> None:
    driver = make_driver()
    remote = msgspec.structs.replace(add_sequence(1, range(8), kind="remote"), is_suspect=True)
    driver.step(remote)
    block_ids = driver.step(Bind(1)).bound[0].rows
    source = make_driver()
    source_ids = source.step(add_sequence(1, range(8), kind="prefill")).started[0].rows
    for target, there in zip(block_ids, source_ids, strict=True):
        driver.row(target)[:] = source.row(there)
    driver.tokens[1] = list(source.tokens[1])
    driver.step(add_sequence(2, range(20, 24)))
    driver.step(Start(1, source.tokens[1][0]))
    for _ in range(4):
        assert len(computed(driver)) == 1
        driver.step()
    driver.run()
    assert driver.tokens[1] == driver.lone_run(range(8))


# Blocks that are kept.


@pytest.mark.parametrize(("num_tokens", "starts"), [(8, True), (9, False)])
def test_one_block_stays_for_each_running_sequence(num_tokens: int, starts: bool) -> None:
    driver = make_driver(num_blocks=10)
    driver.step(add_sequence(1, range(25), max_tokens=5))  # 7 blocks, with room for 3 tokens more
    driver.step(add_sequence(2, range(50, 50 + num_tokens)))
    assert started(driver) == ([2] if starts else [])
    driver.run()
    assert driver.finished == {1: "length", 2: "length"}


def test_a_prefill_that_will_not_grow_keeps_no_block() -> None:
    driver = make_driver(num_blocks=10, max_num_seqs=4, max_step_tokens=16)
    driver.step(add_sequence(1, range(28), kind="prefill"))  # 7 blocks, in two chunks
    driver.step(add_sequence(2, range(50, 61), kind="prefill"))
    assert started(driver) == [2]


def test_what_the_first_in_line_lacks_is_promised_again_when_it_has_left() -> None:
    driver = make_driver(num_blocks=32)
    driver.step(add_sequence(1, range(70), max_tokens=30))  # 18 blocks
    driver.step(add_sequence(2, range(100, 155)))  # 14 blocks, and 1 is kept
    driver.step(add_sequence(3, range(8), kind="remote"))
    assert [each.seq_id for each in driver.events.refused] == [3]
    driver.step(Abort(2))
    driver.step(add_sequence(4, range(8), kind="remote"))
    assert [each.seq_id for each in driver.events.admitted] == [4]


# Whose blocks are taken.


def test_a_step_that_takes_blocks_away_starts_nobody() -> None:
    driver = make_driver(num_blocks=11)
    driver.step(add_sequence(1, range(16), max_tokens=20, priority=2))
    driver.step(add_sequence(2, range(50, 66), max_tokens=20))
    driver.step(add_sequence(3, range(80, 92), priority=1))
    while not driver.events.num_preemptions:
        assert computed(driver) == {1, 2}
        driver.step()
    assert computed(driver) == {1}
    assert driver.events.num_step_seqs == 1
    driver.step()
    assert computed(driver) == {1, 3}
    driver.run()
    assert set(driver.finished) == {1, 2, 3}


def test_a_running_sequence_takes_the_blocks_of_a_parked_one_that_matters_more() -> None:
    driver = make_driver(num_blocks=10)
    driver.step(add_sequence(1, range(8), max_tokens=20, credit=1, priority=5))
    driver.step(add_sequence(2, range(50, 58), max_tokens=30))
    num_preemptions = 0
    while 2 not in driver.finished:
        assert computed(driver) == {2}
        num_preemptions += driver.step().num_preemptions
    assert num_preemptions == 1


def parked_driver(*num_tokens: int, num_blocks: int) -> EngineDriver:
    """Sequences 1, 2, ... with prompts of these lengths have one token each, and no reader."""
    driver = make_driver(num_blocks=num_blocks)
    driver.step(
        *(
            add_sequence(seq_id, range(100 * seq_id, 100 * seq_id + length), credit=1)
            for seq_id, length in enumerate(num_tokens, 1)
        )
    )
    return driver


def blocks_of(driver: EngineDriver, seq_id: int) -> int:
    return int(driver.engine._state.sequences.get(seq_id).table.num_blocks)


def test_a_newcomer_takes_from_parked_ones_no_more_than_it_lacks_the_newest_first() -> None:
    driver = parked_driver(16, 16, 16, num_blocks=16)
    driver.step(add_sequence(9, range(24)))  # 6 blocks, 4 are free, 1 is kept for each parked one
    assert driver.events.num_preemptions == 1
    driver.step()
    assert started(driver) == [9]
    assert [blocks_of(driver, seq_id) for seq_id in (1, 2, 3)] == [4, 4, 0]


@pytest.mark.parametrize("num_tokens", [48, 49, 61])
def test_a_newcomer_needs_the_blocks_of_parked_ones_beside_those_that_are_free(
    num_tokens: int,
) -> None:
    driver = parked_driver(16, num_blocks=16)
    driver.step(add_sequence(9, range(num_tokens), max_tokens=1))
    driver.run()
    assert driver.finished == {9: "length"}


@pytest.mark.parametrize("num_parked_tokens", range(48, 69, 4))
def test_a_search_that_lost_its_blocks_gets_those_of_parked_ones_for_all_its_beams(
    num_parked_tokens: int,
) -> None:
    driver = parked_driver(num_parked_tokens, num_blocks=24)
    forks = (Fork(11, 1), Fork(12, 2))
    driver.step(add_sequence(10, range(9), forks=forks, beam_width=3, max_tokens=9))
    for _ in range(4):
        driver.step()
    driver.engine._state.scheduler.requeue(driver.engine._state.sequences.get(10))
    driver.run()
    assert set(driver.finished) == {10, 11, 12}


# Prefill beside decodes.


class TimedRunner(FakeRunner):
    """A step takes a millisecond for each of its tokens."""

    clock: VirtualClock

    def run(self, batch: StepBatch) -> StepResult:
        self.clock.advance(0.001 * len(batch.token_ids))
        return super().run(batch)


def test_a_step_with_decodes_takes_fewer_prompt_tokens_than_one_without() -> None:
    runner = TimedRunner(block_size=BLOCK, max_model_len=2000)
    driver = EngineDriver(runner, num_blocks=512, max_step_tokens=256, max_step_s=0.02)
    runner.clock = driver.clock
    driver.step(add_sequence(1, range(400), max_tokens=40))
    alone, beside = [], []
    while 1 not in driver.tokens:
        alone.append(driver.step().num_step_tokens)
    driver.step(add_sequence(2, range(500, 900)))
    assert started(driver) == [2]
    while 2 not in driver.tokens:
        beside.append(driver.step().num_step_tokens)
    assert max(alone) == 80
    assert 20 < max(beside) <= 40, "a step takes up to twice max_step_s in the end"


# Prompts of which some are more important.


def test_a_more_important_prompt_is_computed_before_the_rest_of_one_that_has_begun() -> None:
    driver = make_driver(max_num_seqs=4, max_step_tokens=8)
    driver.step(add_sequence(1, range(40), max_tokens=1))
    driver.step(add_sequence(2, range(4), max_tokens=1, priority=1))
    assert started(driver) == [2]
    assert computed(driver) == {2}
    driver.step(add_sequence(3, range(4), max_tokens=1))
    assert started(driver) == []
    driver.run()
    assert list(driver.finished) == [2, 1, 3]


def test_a_quiet_tenants_prompt_goes_before_others_of_its_priority_and_behind_larger_ones() -> None:
    driver = make_driver(max_num_seqs=4, max_step_tokens=8)
    driver.step(add_sequence(1, range(40), max_tokens=1))
    quiet = add_sequence(2, range(8), max_tokens=1, is_quiet=True)
    driver.step(quiet, add_sequence(3, range(8), max_tokens=1, priority=1))
    driver.run()
    assert list(driver.finished) == [3, 2, 1]


@pytest.mark.parametrize("decodes", [False, True])
def test_a_quiet_tenants_prompt_has_a_step_of_its_own_unless_something_decodes(
    decodes: bool,
) -> None:
    driver = make_driver(max_num_seqs=4, max_step_tokens=32)
    if decodes:
        driver.step(add_sequence(1, range(4), max_tokens=9))
    others = [add_sequence(i, range(4), max_tokens=1) for i in (2, 3)]
    driver.step(*others, add_sequence(4, range(4), max_tokens=1, is_quiet=True))
    assert computed(driver) - {1} == ({2, 3, 4} if decodes else {4})
    driver.step()
    assert set(driver.finished) == {2, 3, 4}


def test_the_prompts_of_several_quiet_tenants_share_a_step() -> None:
    driver = make_driver(max_num_seqs=4, max_step_tokens=32)
    driver.step(*(add_sequence(i, range(4), max_tokens=1, is_quiet=True) for i in (1, 2)))
    assert computed(driver) == {1, 2}

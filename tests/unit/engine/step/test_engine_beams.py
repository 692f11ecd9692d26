from typing import Any

import pytest

from baton.engine.protocol.messages import Abort, AddSequence, Bind, Credit, Fork, Release, Start
from baton.testing.engine_driver import EngineDriver, add_sequence
from baton.testing.fake_runner import FakeRunner
from baton.testing.lone_beam_search import lone_beam_search

BLOCK = 4


def make_driver(num_blocks: int = 64, mean_output_tokens: int = 5, **sizes: int) -> EngineDriver:
    runner = FakeRunner(
        block_size=BLOCK,
        max_model_len=60,
        vocab_size=50,
        mean_output_tokens=mean_output_tokens,
        num_layers=2,
    )
    return EngineDriver(runner, num_blocks=num_blocks, **sizes)


def request(length: int, width: int, **fields: Any) -> AddSequence:
    """The results are of sequences 1, 2, ..., best first."""
    forks = tuple(Fork(1 + choice, choice) for choice in range(1, width))
    return add_sequence(1, range(length), forks=forks, beam_width=width, **fields)


def outputs(driver: EngineDriver, add: AddSequence) -> list[list[int]]:
    return [driver.tokens[seq_id] for seq_id in [1, *(fork.seq_id for fork in add.forks)]]


def expected(driver: EngineDriver, add: AddSequence) -> list[list[int]]:
    prompt = memoryview(add.token_ids).cast("I").tolist()
    return lone_beam_search(driver.runner, prompt, add.sampling)


def ruin_free_blocks(driver: EngineDriver) -> None:
    """Nothing that they held is found again, in the cache or in memory."""
    pool = driver.engine._state.manager._pool
    free = pool.allocate(pool.num_available)
    for block_id in free:
        row = driver.row(block_id)
        row[:] = b"\xff" * len(row)
    pool.release(free)


@pytest.mark.parametrize(
    ("width", "fields"),
    [
        (1, {}),
        (2, {"max_tokens": 1}),
        (3, {"max_tokens": 20}),
        (4, {"max_tokens": 20, "length_penalty": 0.0}),
        (4, {"max_tokens": 20, "length_penalty": -1.0}),
        (3, {"max_tokens": 20, "early_stopping": "full"}),
        (3, {"max_tokens": 20, "early_stopping": "never", "length_penalty": 2.0}),
        (3, {"max_tokens": 20, "ignore_eos": True}),
        (3, {"max_tokens": 20, "min_tokens": 6}),
        (3, {"max_tokens": 20, "stop_token_ids": (3, 4, 17)}),
        (2, {"max_tokens": 100}),
    ],
)
def test_a_search_brings_what_a_slow_one_brings(width: int, fields: dict[str, Any]) -> None:
    driver = make_driver()
    add = request(10, width, **fields)
    driver.step(add)
    driver.run()
    assert outputs(driver, add) == expected(driver, add)
    assert set(driver.finished.values()) <= {"stop", "length"}
    assert driver.num_free_blocks == 64


def test_beams_share_their_blocks_and_nothing_is_reported_before_the_end():
    driver = make_driver(mean_output_tokens=0)
    add = request(41, 4, max_tokens=12)
    driver.step(add)
    assert driver.events.num_step_tokens == 41
    most_used = 0
    while driver.engine.has_work and not driver.tokens:
        driver.step()
        most_used = max(most_used, 64 - driver.num_free_blocks)
    assert most_used <= 11 + 4 * 4
    assert driver.events.finished
    assert outputs(driver, add) == expected(driver, add)


def test_beams_take_all_their_steps_together():
    driver = make_driver(mean_output_tokens=0, max_num_seqs=4)
    add = request(10, 3, max_tokens=8)
    others = [add_sequence(seq_id, range(seq_id, 20), max_tokens=12) for seq_id in (7, 8)]
    driver.step(others[0], add, others[1])
    while not driver.finished:
        driver.step()
        assert driver.events.num_step_seqs in (2, 4)  # with the leader alone, then with all beams
    driver.run()
    assert outputs(driver, add) == expected(driver, add)
    assert driver.tokens[8] == driver.runner.lone_run(range(8, 20), others[1].sampling)


def test_a_search_that_starts_takes_a_place_for_each_of_its_beams():
    driver = make_driver(mean_output_tokens=0, max_num_seqs=4)
    add = request(10, 3, max_tokens=8)
    others = [add_sequence(seq_id, range(seq_id, 20), max_tokens=12) for seq_id in (7, 8)]
    driver.step(add, *others)
    assert [started.seq_id for started in driver.events.started] == [1, 7]
    driver.run()
    assert outputs(driver, add) == expected(driver, add)


def test_a_preempted_search_goes_on_where_it_was():
    driver = make_driver(num_blocks=24, mean_output_tokens=0, max_num_seqs=8, max_step_tokens=8)
    add = request(14, 3, max_tokens=20)
    driver.step(add)
    for _ in range(8):
        driver.step()
    driver.step(add_sequence(9, range(5, 35), max_tokens=25, priority=1))
    num_preemptions = 0
    while driver.engine.has_work:
        driver.step()
        num_preemptions += driver.events.num_preemptions
    assert num_preemptions > 0
    assert outputs(driver, add) == expected(driver, add)
    assert driver.num_free_blocks == 24


@pytest.mark.parametrize("is_evicted", [False, True])
@pytest.mark.parametrize("length", [8, 9, 10])
def test_a_prompt_that_is_computed_again_leaves_its_beams_room(length: int, is_evicted: bool):
    driver = make_driver(num_blocks=32, mean_output_tokens=0, max_num_seqs=8, max_step_tokens=8)
    add = request(length, 3, max_tokens=12)
    driver.step(add)
    for _ in range(4):
        driver.step()
    engine = driver.engine
    engine._state.scheduler.requeue(engine._state.sequences.get(1))
    if is_evicted:
        ruin_free_blocks(driver)
    driver.run()
    assert outputs(driver, add) == expected(driver, add)


def test_the_last_prompt_token_that_is_computed_again_goes_where_beams_read_it():
    """The last step of a prompt of whole blocks has one token, as a decode has."""
    driver = make_driver(mean_output_tokens=0, max_num_seqs=8, max_step_tokens=8)
    # Besides these, a step has room for three tokens.
    driver.step(*(add_sequence(seq_id, [seq_id], max_tokens=40) for seq_id in range(5, 10)))
    add = request(8, 3, max_tokens=12)
    driver.step(add)
    for _ in range(4):
        driver.step()
    engine = driver.engine
    engine._state.scheduler.requeue(engine._state.sequences.get(1))
    ruin_free_blocks(driver)
    driver.run()
    assert outputs(driver, add) == expected(driver, add)


def test_results_go_out_as_their_choices_have_credit():
    driver = make_driver(mean_output_tokens=0)
    add = request(10, 2, max_tokens=8, credit=3)
    driver.step(add)
    driver.run()
    results = expected(driver, add)
    assert outputs(driver, add) == [result[:3] for result in results]
    assert driver.finished == {}
    assert driver.num_free_blocks == 64
    driver.step(Credit(2, 5))
    assert outputs(driver, add) == [results[0][:3], results[1][:5]]
    driver.step(Credit(2, 50), Credit(1, 50))
    assert driver.finished == {1: "length", 2: "length"}
    assert outputs(driver, add) == results


def test_a_result_that_nobody_wants_is_dropped_and_the_others_come():
    driver = make_driver()
    add = request(10, 3, max_tokens=10)
    driver.step(add)
    driver.step(Abort(1))
    driver.step(Abort(3))
    driver.run()
    assert driver.tokens == {2: expected(driver, add)[1]}


def test_an_aborted_search_leaves_nothing():
    driver = make_driver()
    driver.step(request(10, 3, max_tokens=10))
    driver.step()
    driver.step(Abort(1), Abort(2), Abort(3))
    assert not driver.engine.has_work
    assert driver.num_free_blocks == 64
    driver.step(request(10, 3, max_tokens=10, credit=1))
    driver.run()
    driver.step(Abort(1), Abort(2), Abort(3))
    assert driver.num_free_blocks == 64
    assert driver.finished == {}


def test_a_deadline_ends_a_search_and_results_that_wait():
    driver = make_driver(mean_output_tokens=0)
    driver.step(request(10, 2, max_tokens=10, deadline=1.0))
    driver.clock.advance(2.0)
    driver.step()
    assert driver.finished == dict.fromkeys([1, 2], "deadline_exceeded")
    assert driver.num_free_blocks == 64
    driver.finished.clear()
    driver.step(request(10, 2, max_tokens=10, deadline=9.0, credit=1))
    driver.run()
    driver.clock.advance(9.0)
    driver.step()
    assert driver.finished == dict.fromkeys([1, 2], "deadline_exceeded")


def test_a_search_goes_on_after_a_handoff():
    prefill, decode = make_driver(), make_driver()
    add = request(10, 3, kind="remote", max_tokens=20)
    decode.step(add)
    prefill.step(add_sequence(1, range(10), kind="prefill", beam_width=3, max_tokens=20, credit=1))
    source_ids = prefill.events.started[0].rows
    assert prefill.finished == {}
    [first] = prefill.events.logprobs
    decode.step(Bind(1))
    [bound] = decode.events.bound
    for source, target in zip(source_ids, bound.rows, strict=True):
        decode.row(target)[:] = prefill.row(source)
    prefill.step(Release(1))
    decode.step(Start(1, 0, (), tuple(first.top_ids), tuple(first.top_logprobs)))
    decode.run()
    assert outputs(decode, add) == expected(decode, add)
    assert decode.num_free_blocks == 64


def test_a_prefill_worker_needs_room_for_the_prompt_alone():
    driver = make_driver(num_blocks=8, max_num_seqs=2)
    search = {"beam_width": 4, "max_tokens": 40, "credit": 1}
    driver.step(add_sequence(1, range(20), kind="prefill", **search))
    assert driver.events.refused == []
    assert len(driver.events.logprobs[0].top_ids) == 5


def test_what_cannot_be_searched_is_refused():
    driver = make_driver(num_blocks=16, max_num_seqs=4)
    driver.step(request(10, 5), request(10, 4, max_tokens=40), request(10, 2, emitted=[1]))
    driver.step(add_sequence(1, range(10), beam_width=2))
    assert {r.reason for r in driver.events.refused} == {"invalid_value"}
    driver = make_driver()
    driver.step(request(10, 50))
    assert driver.events.refused[0].reason == "invalid_value"

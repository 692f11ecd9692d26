"""Sequences that nobody reads give up their blocks after a while, and go on all the same."""

from baton.engine.protocol.messages import Abort, Credit
from baton.engine.step.step_planner import LOOK_S
from baton.testing.engine_driver import EngineDriver, add_sequence
from baton.testing.fake_runner import FakeRunner

BLOCK = 4


def make_driver(num_blocks: int = 16, **sizes: int) -> EngineDriver:
    runner = FakeRunner(block_size=BLOCK, max_model_len=120, num_layers=2)
    return EngineDriver(runner, num_blocks=num_blocks, **sizes)


def let_pass(driver: EngineDriver, seconds: float) -> None:
    """Virtual time, with the steps that the engine asks for."""
    end = driver.clock.now() + seconds
    while (due := driver.engine.next_deadline()) is not None and due <= end:
        driver.clock.advance(max(0.0, due - driver.clock.now()))
        driver.run()
    driver.clock.advance(max(0.0, end - driver.clock.now()))


def test_a_sequence_that_nobody_reads_gives_up_its_blocks_and_goes_on_with_the_same_tokens():
    driver = make_driver()
    driver.step(add_sequence(1, range(20), max_tokens=12, credit=5))
    driver.run()
    assert driver.num_free_blocks < 16
    let_pass(driver, 2 * LOOK_S)
    assert driver.num_free_blocks == 16
    assert driver.engine.next_deadline() is None, "an idle engine sleeps"
    load = driver.engine.measure_load()
    assert (load.num_running, load.num_waiting, load.num_parked) == (0, 0, 1)
    assert load.num_queued_prefill_tokens == 0
    driver.step(Credit(1, 100))
    driver.run()
    assert driver.tokens[1] == driver.lone_run(range(20), 12)
    assert driver.engine.measure_load().num_parked == 0


def test_a_reader_who_comes_back_before_others_needed_the_blocks_costs_one_block_of_compute():
    driver = make_driver()
    driver.step(add_sequence(1, range(20), max_tokens=12, credit=5))
    driver.run()
    let_pass(driver, 2 * LOOK_S)
    driver.step(Credit(1, 100))
    assert driver.events.num_step_tokens <= BLOCK


def test_a_reader_who_is_merely_slow_keeps_its_blocks():
    driver = make_driver()
    driver.step(add_sequence(1, range(20), max_tokens=60, credit=1))
    for credit in range(2, 30):
        driver.run()
        let_pass(driver, LOOK_S)
        assert driver.events.load.num_running == 1
        driver.step(Credit(1, credit))
    assert driver.tokens[1] == driver.lone_run(range(20), 60)[:29]


def test_newcomers_run_though_stalled_readers_had_held_every_block():
    driver = make_driver(max_waiting=2)
    for seq_id in (1, 2, 3):
        driver.step(add_sequence(seq_id, range(seq_id, seq_id + 14), max_tokens=30, credit=1))
        driver.run()
    let_pass(driver, 2 * LOOK_S)
    # Also more of them than may wait in the queue.
    driver.step(add_sequence(4, range(80, 120), max_tokens=10))
    driver.run()
    assert driver.finished == {4: "length"}
    assert driver.tokens[4] == driver.lone_run(range(80, 120), 10)
    driver.step(*(Credit(seq_id, 100) for seq_id in (1, 2, 3)))
    driver.run()
    for seq_id in (1, 2, 3):
        assert driver.tokens[seq_id] == driver.lone_run(range(seq_id, seq_id + 14), 30)


def test_a_handed_over_newcomer_is_promised_room_at_once_that_a_stalled_reader_holds():
    driver = make_driver()
    driver.step(add_sequence(1, range(50), max_tokens=10, credit=1))
    driver.run()
    assert driver.num_free_blocks < 8
    driver.step(add_sequence(2, range(60, 90), kind="remote"))
    assert [admitted.seq_id for admitted in driver.events.admitted] == [2]
    assert driver.events.num_preemptions == 1
    driver.step(Abort(2))
    driver.step(Credit(1, 10))
    driver.run()
    assert driver.tokens[1] == driver.lone_run(range(50), 10)
    assert driver.num_free_blocks == 16


def test_stalled_readers_keep_their_blocks_when_these_would_not_be_enough():
    driver = make_driver()
    driver.step(add_sequence(1, range(20), max_tokens=30, credit=1))
    driver.step(add_sequence(2, range(100, 130), max_tokens=30))
    driver.step(add_sequence(3, range(60, 110), kind="remote"))
    assert [refused.reason for refused in driver.events.refused] == ["no_room"]
    assert driver.events.num_preemptions == 0
    driver.step(Abort(1), Abort(2))
    assert driver.num_free_blocks == 16

from baton.engine.protocol.messages import Abort, Credit
from baton.testing.engine_driver import EngineDriver, add_sequence
from baton.testing.fake_runner import FakeRunner

BLOCK = 4


def make_driver(num_blocks: int = 64, mean_output_tokens: int = 0, **sizes: int) -> EngineDriver:
    runner = FakeRunner(
        block_size=BLOCK, max_model_len=120, mean_output_tokens=mean_output_tokens, num_layers=2
    )
    return EngineDriver(runner, num_blocks=num_blocks, **sizes)


def test_a_local_sequence_gets_the_tokens_of_a_lone_run_and_frees_its_blocks():
    driver = make_driver()
    add = add_sequence(1, range(10), max_tokens=9)
    driver.step(add)
    driver.run()
    assert driver.tokens[1] == driver.runner.lone_run(range(10), add.sampling)
    assert driver.finished == {1: "length"}
    assert driver.num_free_blocks == 64


def test_many_sequences_in_one_batch_do_not_disturb_each_other():
    driver = make_driver(num_blocks=400)
    adds = [add_sequence(i, range(i, i + 5 + 3 * i), max_tokens=6 + i) for i in range(12)]
    driver.step(*adds)
    driver.run()
    for i, add in enumerate(adds):
        assert driver.tokens[i] == driver.runner.lone_run(range(i, i + 5 + 3 * i), add.sampling)


def test_a_long_prompt_is_prefilled_in_chunks_while_decodes_go_on():
    driver = make_driver(max_num_seqs=4, max_step_tokens=10)
    driver.step(add_sequence(1, range(3), max_tokens=30))
    driver.step(add_sequence(2, range(50, 95), max_tokens=2))
    assert (driver.events.num_step_seqs, driver.events.num_step_tokens) == (2, 9)
    num_steps = 1
    while 2 not in driver.tokens:
        assert driver.step().token_seq_ids[0] == 1
        num_steps += 1
    assert num_steps == 6  # chunks of whole blocks: 8 tokens each, then 5
    driver.run()
    assert driver.tokens[2] == driver.lone_run(range(50, 95))[:2]


def test_a_chunk_that_is_not_the_last_ends_on_a_full_block():
    driver = make_driver(max_num_seqs=4, max_step_tokens=10)
    driver.step(add_sequence(1, range(30)))
    assert driver.events.num_step_tokens == 8
    assert driver.events.load.num_queued_prefill_tokens == 22


def test_an_equal_prefix_is_computed_once_but_never_its_last_token():
    driver = make_driver()
    driver.step(add_sequence(1, range(16), max_tokens=1))
    driver.step(add_sequence(2, range(16), max_tokens=4))
    [started] = driver.events.started
    assert started.num_cached_tokens == 12
    assert driver.events.num_step_tokens == 4
    driver.run()
    assert driver.tokens[2] == driver.lone_run(range(16), max_tokens=4)


def test_generated_tokens_are_cached_too():
    driver = make_driver()
    driver.step(add_sequence(1, range(6), max_tokens=11))
    driver.run()
    driver.step(add_sequence(2, [*range(6), *driver.tokens[1], 7]))
    assert driver.events.started[0].num_cached_tokens == 16


def test_a_cached_prompt_loses_its_tail_before_its_beginning():
    driver = make_driver(num_blocks=10)
    driver.step(add_sequence(1, range(32), max_tokens=1))
    driver.run()
    driver.step(add_sequence(2, range(50, 66), max_tokens=1))  # two blocks more than are blank
    driver.run()
    driver.step(add_sequence(3, range(32)))
    assert driver.events.started[0].num_cached_tokens == 24


def test_another_cache_key_hits_nothing():
    driver = make_driver()
    driver.step(add_sequence(1, range(16), max_tokens=1))
    driver.step(add_sequence(2, range(16), cache_key=b"x" * 32))
    assert driver.events.started[0].num_cached_tokens == 0


def test_hashes_that_come_with_the_prompt_are_the_ones_that_the_engine_makes():
    first, second = make_driver(), make_driver()
    first.step(add_sequence(1, range(13)))
    [stored] = first.events.stored
    second.step(add_sequence(1, range(13), block_hashes=stored.hashes))
    assert second.events.stored == [stored]


def test_the_end_token_is_emitted_and_counted():
    driver = make_driver(mean_output_tokens=5)
    eos = driver.runner.eos_token_ids[0]
    driver.step(add_sequence(1, range(5), max_tokens=100))
    driver.run()
    assert driver.finished == {1: "stop"}
    assert driver.tokens[1].index(eos) == len(driver.tokens[1]) - 1


def test_ignore_eos_goes_on_to_max_tokens():
    driver = make_driver(mean_output_tokens=2)
    driver.step(add_sequence(1, range(5), max_tokens=40, ignore_eos=True))
    driver.run()
    assert driver.finished == {1: "length"}
    assert driver.runner.eos_token_ids[0] in driver.tokens[1][:-1]


def test_a_stop_token_of_the_request_ends_it():
    driver = make_driver()
    third = driver.lone_run(range(5))[2]
    driver.step(add_sequence(1, range(5), stop_token_ids=(third,)))
    driver.run()
    assert driver.finished == {1: "stop"}
    assert len(driver.tokens[1]) == 3


def test_the_context_limit_ends_a_sequence():
    driver = make_driver()
    driver.step(add_sequence(1, range(110), max_tokens=100))
    driver.run()
    assert driver.finished == {1: "length"}
    assert len(driver.tokens[1]) == 10


def test_the_context_limit_is_at_most_what_the_pool_holds():
    driver = make_driver(num_blocks=10)
    assert driver.engine.info.max_model_len == 40
    driver.step(add_sequence(1, range(30), max_tokens=100))
    driver.run()
    assert len(driver.tokens[1]) == 10


def test_output_of_earlier_attempts_counts_and_is_not_emitted_again():
    driver = make_driver()
    sampling = add_sequence(1, [], max_tokens=8).sampling
    whole = driver.runner.lone_run(range(9), sampling)
    driver.tokens[1] = whole[:3]
    driver.step(add_sequence(1, range(9), emitted=whole[:3]))
    driver.run()
    assert driver.tokens[1] == whole
    assert driver.finished == {1: "length"}


def test_a_sequence_whose_output_is_complete_already_finishes_at_once():
    driver = make_driver()
    driver.step(add_sequence(1, range(9), emitted=range(8)))
    [finished] = driver.events.finished
    assert (finished.reason, finished.num_output_tokens) == ("length", 8)
    assert driver.tokens == {}


def test_an_end_token_that_an_earlier_attempt_brought_stays_the_end():
    driver = make_driver()
    [eos] = driver.engine.info.eos_token_ids
    driver.step(add_sequence(1, range(9), emitted=[5, eos]))
    [finished] = driver.events.finished
    assert (finished.reason, finished.num_output_tokens) == ("stop", 2)
    assert driver.tokens == {}


def test_a_sequence_without_credit_is_parked_and_goes_on_with_it():
    driver = make_driver()
    driver.step(add_sequence(1, range(5), credit=2), add_sequence(2, range(5), max_tokens=4))
    driver.run()
    assert len(driver.tokens[1]) == 2
    assert driver.finished == {2: "length"}
    driver.step(Credit(1, 5))
    driver.run()
    assert len(driver.tokens[1]) == 5
    driver.step(Credit(1, 3))
    assert not driver.engine.has_work
    driver.step(Credit(1, 100))
    driver.run()
    assert driver.tokens[1] == driver.lone_run(range(5))


def test_a_waiting_sequence_without_credit_lets_others_pass():
    driver = make_driver()
    driver.step(add_sequence(1, range(5), credit=0), add_sequence(2, range(5)))
    driver.run()
    assert list(driver.tokens) == [2]


def test_an_aborted_sequence_is_gone_without_a_finish():
    driver = make_driver()
    driver.step(add_sequence(1, range(9)))
    driver.step(Abort(1))
    assert driver.events.freed == [1]
    driver.step(Abort(1), Abort(77), Credit(1, 9))
    assert driver.events.freed == [1, 77], "an abort is answered, also a late one"
    assert driver.finished == {}
    assert driver.num_free_blocks == 64
    assert not driver.engine.has_work


def test_without_room_the_newest_least_important_sequence_is_computed_again():
    driver = make_driver(num_blocks=12)
    driver.step(
        add_sequence(1, range(8), max_tokens=25),
        add_sequence(2, range(50, 58), max_tokens=25, priority=1),
        add_sequence(3, range(90, 98), max_tokens=25),
    )
    victims = []
    for _ in range(300):
        before = driver.engine.measure_load().num_waiting
        if driver.step().num_preemptions and before == 0:
            victims = driver.events.token_seq_ids
            break
    assert 3 not in victims
    assert {1, 2} == set(victims)
    driver.run()
    assert list(driver.finished) == [2, 1, 3]
    for seq_id, start in ((1, 0), (2, 50), (3, 90)):
        sampling = add_sequence(1, [], max_tokens=25).sampling
        assert driver.tokens[seq_id] == driver.runner.lone_run(range(start, start + 8), sampling)


def test_a_preempted_sequence_is_not_started_twice():
    driver = make_driver(num_blocks=10)
    driver.step(
        add_sequence(1, range(8), max_tokens=25), add_sequence(2, range(50, 58), max_tokens=25)
    )
    num_started, num_preemptions = 2, 0
    while driver.engine.has_work:
        driver.step()
        num_started += len(driver.events.started)
        num_preemptions += driver.events.num_preemptions
    assert num_preemptions > 0
    assert num_started == 2


def test_parked_sequences_lose_their_blocks_first():
    driver = make_driver(num_blocks=10)
    driver.step(add_sequence(1, range(8), max_tokens=20, credit=1, priority=5))
    driver.step(add_sequence(2, range(50, 58), max_tokens=30))
    while driver.engine.has_work:
        driver.step()
    assert driver.finished == {2: "length"}
    load = driver.events.load
    assert (load.num_waiting, load.num_parked, load.num_blocks_free) == (0, 1, 10)
    driver.step(Credit(1, 100))
    driver.run()
    sampling = add_sequence(1, [], max_tokens=20).sampling
    assert driver.tokens[1] == driver.runner.lone_run(range(8), sampling)


def test_parked_sequences_give_way_to_a_waiting_one_when_nothing_else_runs():
    driver = make_driver(num_blocks=16)
    driver.step(add_sequence(1, range(40), max_tokens=9, credit=1))
    driver.run()
    driver.step(add_sequence(2, range(100, 130), max_tokens=20))
    driver.run()
    assert driver.finished == {2: "length"}
    assert driver.tokens[2] == driver.lone_run(range(100, 130), 20)
    driver.step(Credit(1, 100))
    driver.run()
    assert driver.tokens[1] == driver.lone_run(range(40), 9)
    assert driver.num_free_blocks == 16


def test_parked_sequences_keep_their_blocks_when_those_would_not_be_enough():
    driver = make_driver(num_blocks=16)
    driver.step(
        add_sequence(1, range(40), max_tokens=9, kind="prefill"),
        add_sequence(2, range(50, 54), credit=1),
    )
    driver.run()
    driver.step(add_sequence(3, range(100, 130)))
    assert driver.events.num_preemptions == 0
    assert driver.events.load.num_waiting == 1
    assert not driver.engine.has_work


def test_a_newcomer_waits_for_its_blocks_and_one_for_each_running_sequence():
    driver = make_driver(num_blocks=10)
    driver.step(add_sequence(1, range(24), max_tokens=5))
    driver.step(add_sequence(2, range(50, 66)))  # 4 blocks are left, 1 of them is kept
    assert driver.events.started == []
    driver.run()
    assert driver.finished == {1: "length", 2: "length"}


def test_the_queue_is_ordered_by_priority_then_arrival():
    driver = make_driver(max_num_seqs=1)
    driver.step(
        add_sequence(1, range(5)),
        add_sequence(2, range(5)),
        add_sequence(3, range(5), priority=3),
        add_sequence(4, range(5), priority=3),
    )
    driver.run()
    assert list(driver.finished) == [3, 4, 1, 2]


def test_a_full_queue_refuses():
    driver = make_driver(max_waiting=2)
    driver.step(*[add_sequence(i, range(5)) for i in range(3)])
    assert [(r.seq_id, r.reason) for r in driver.events.refused] == [(2, "overloaded")]


def test_what_can_never_run_is_refused_with_its_reason():
    driver = make_driver()
    driver.step(
        add_sequence(1, range(120)),
        add_sequence(2, [5, 1000]),
        add_sequence(3, []),
        add_sequence(4, range(9), block_hashes=b"h" * 48),
        add_sequence(5, range(9), block_hashes=b"h" * 5),
    )
    assert [(r.seq_id, r.reason) for r in driver.events.refused] == [
        (1, "context_length_exceeded"),
        (2, "invalid_token_id"),
        (3, "invalid_value"),
        (4, "invalid_value"),
        (5, "invalid_value"),
    ]
    assert driver.num_free_blocks == 64


def test_expired_sequences_end_while_waiting_and_while_running():
    driver = make_driver(max_num_seqs=1)
    driver.step(
        add_sequence(1, range(5), max_tokens=50, deadline=2.0),
        add_sequence(2, range(5), max_tokens=50, deadline=1.0),
        add_sequence(3, range(5), max_tokens=50),
    )
    assert driver.engine.next_deadline() == 1.0
    driver.clock.advance(1.5)
    driver.step()
    assert driver.finished == {2: "deadline_exceeded"}
    driver.clock.advance(1.0)
    driver.step()
    assert driver.finished[1] == "deadline_exceeded"
    assert driver.engine.next_deadline() is None
    driver.run()
    assert driver.finished[3] == "length"


def test_an_idle_step_brings_nothing():
    driver = make_driver()
    driver.step(add_sequence(1, range(5), max_tokens=1))
    driver.engine.step([])
    assert driver.engine.step([]) is None

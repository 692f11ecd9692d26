import msgspec
import pytest

from baton.engine.protocol.messages import Abort, Bind, Credit, Release, Start
from baton.testing.engine_driver import EngineDriver, add_sequence
from baton.testing.fake_runner import FakeRunner

BLOCK = 4


def make_driver(num_blocks: int = 64, **sizes: int) -> EngineDriver:
    return EngineDriver(
        FakeRunner(block_size=BLOCK, max_model_len=120), num_blocks=num_blocks, **sizes
    )


def hand_off(
    prefill: EngineDriver, decode: EngineDriver, seq_id: int, prompt: range, **fields: int
) -> None:
    """The whole life of a handoff up to Start, blocks copied from one pool to the other."""
    decode.step(add_sequence(seq_id, prompt, kind="remote", **fields))
    [admitted] = decode.events.admitted
    num_cached = admitted.num_cached_blocks
    add = add_sequence(seq_id, prompt, kind="prefill", num_peer_blocks=num_cached, **fields)
    prefill.step(add)
    sources = prefill.events.started[0].rows
    decode.step(Bind(seq_id))
    [bound] = decode.events.bound
    while seq_id not in prefill.tokens:
        prefill.step()
    for source, target in zip(sources, bound.rows, strict=True):
        decode.row(target)[:] = prefill.row(source)
    prefill.step(Release(seq_id))
    decode.tokens[seq_id] = prefill.tokens.pop(seq_id)
    decode.step(Start(seq_id, decode.tokens[seq_id][0]))


def test_a_started_remote_sequence_computes_its_first_token_and_nothing_before_it():
    prefill, decode = make_driver(), make_driver()
    hand_off(prefill, decode, 1, range(19))
    assert (decode.events.num_step_tokens, decode.events.token_indexes) == (1, [1])


def test_a_prefill_sequence_reports_progress_samples_one_token_and_holds_its_blocks():
    driver = make_driver(max_num_seqs=4, max_step_tokens=8)
    driver.step(add_sequence(1, range(19), kind="prefill"))
    [started] = driver.events.started
    assert (len(started.rows), started.num_cached_tokens) == (5, 0)
    progress = [driver.events.progress[0].num_computed_tokens]
    while driver.engine.has_work:
        progress += [p.num_computed_tokens for p in driver.step().progress]
    assert progress == [8, 16, 19]
    assert driver.tokens[1] == driver.lone_run(range(19))[:1]
    assert driver.finished == {}
    assert driver.num_free_blocks == 59
    driver.step(Release(1))
    assert driver.num_free_blocks == 64


def test_a_prefill_sequence_whose_token_ends_it_finishes_and_still_holds_its_blocks():
    driver = make_driver()
    driver.step(add_sequence(1, range(19), kind="prefill", max_tokens=1))
    assert driver.finished == {1: "length"}
    assert driver.num_free_blocks == 59
    driver.step(Abort(1))
    assert driver.num_free_blocks == 64


def test_the_next_prefill_hits_the_blocks_of_a_released_one():
    driver = make_driver()
    driver.step(add_sequence(1, range(19), kind="prefill"))
    driver.step(Release(1))
    driver.step(add_sequence(2, range(19), kind="prefill"))
    assert driver.events.started[0].num_cached_tokens == 16


def test_an_expired_prefill_keeps_the_blocks_that_the_front_may_be_reading():
    driver = make_driver(max_num_seqs=4, max_step_tokens=8)
    driver.step(add_sequence(1, range(19), kind="prefill", deadline=1.0))
    driver.clock.advance(2.0)
    driver.step()
    assert driver.finished == {1: "deadline_exceeded"}
    assert driver.num_free_blocks == 59
    driver.step(Release(1))
    assert driver.num_free_blocks == 64


def test_a_prefill_starts_only_when_all_its_blocks_are_free():
    driver = make_driver(num_blocks=8)
    driver.step(add_sequence(1, range(20), kind="prefill"))
    driver.step(add_sequence(2, range(50, 70), kind="prefill"))
    assert driver.events.started == []
    assert not driver.engine.has_work
    driver.step(Release(1))
    assert [s.seq_id for s in driver.events.started] == [2]


def test_a_prefill_is_never_preempted():
    driver = make_driver(num_blocks=8, max_num_seqs=4, max_step_tokens=5)
    driver.step(add_sequence(1, range(8), max_tokens=20))
    driver.step(add_sequence(2, range(50, 70), kind="prefill"))
    while not driver.events.num_preemptions:
        assert 2 not in driver.tokens
        driver.step()
    assert driver.events.token_seq_ids == [2]  # the decode itself gave way
    driver.run()
    assert driver.tokens[2] == driver.lone_run(range(50, 70))[:1]
    driver.step(Release(2))
    driver.run()
    assert driver.tokens[1] == driver.lone_run(range(8), max_tokens=20)


def test_a_handed_over_sequence_goes_on_with_the_tokens_of_a_lone_run():
    prefill, decode = make_driver(max_num_seqs=4, max_step_tokens=8), make_driver()
    hand_off(prefill, decode, 1, range(19))
    decode.run()
    assert decode.tokens[1] == decode.lone_run(range(19))
    assert decode.finished == {1: "length"}
    assert (prefill.num_free_blocks, decode.num_free_blocks) == (64, 64)


def test_received_blocks_enter_the_prefix_cache_and_spare_the_next_handoff():
    prefill, decode = make_driver(), make_driver()
    hand_off(prefill, decode, 1, range(16))
    decode.run()
    decode.step(add_sequence(2, range(16), kind="remote"))
    assert decode.events.admitted[0].num_cached_blocks == 4
    decode.step(Abort(2))
    hand_off(prefill, decode, 3, range(16))
    decode.run()
    assert decode.tokens[3] == decode.lone_run(range(16))


def test_a_started_sequence_that_lost_its_blocks_is_computed_again_here():
    prefill, decode = make_driver(), make_driver(num_blocks=16)
    hand_off(prefill, decode, 1, range(10), max_tokens=40)
    hand_off(prefill, decode, 2, range(50, 60), max_tokens=40)
    num_preemptions = 0
    while decode.engine.has_work:
        num_preemptions += decode.step().num_preemptions
        assert decode.events.started == []
    assert num_preemptions > 0
    sampling = add_sequence(1, [], max_tokens=40).sampling
    assert decode.tokens[1] == decode.runner.lone_run(range(10), sampling)
    assert decode.tokens[2] == decode.runner.lone_run(range(50, 60), sampling)


def test_a_promise_holds_the_prompt_and_two_blocks_to_grow():
    driver = make_driver()
    driver.step(add_sequence(1, range(10), kind="remote", max_tokens=50))
    load = driver.events.load
    assert (load.num_blocks_free, load.num_blocks_promised) == (64, 5)
    driver.step(Bind(1))
    load = driver.events.load
    assert (load.num_blocks_free, load.num_blocks_promised) == (59, 0)
    assert len(driver.events.bound[0].rows) == 3


def test_the_load_shows_a_remote_sequence_from_its_admission_on():
    decode = make_driver()
    decode.step(add_sequence(1, range(10), kind="remote", max_tokens=50))
    assert decode.events.load.num_not_started == 1
    decode.step(Bind(1))
    assert decode.events.load.num_not_started == 1
    decode.step(Abort(1))
    hand_off(make_driver(), decode, 2, range(10))
    assert (decode.events.load.num_not_started, decode.events.load.num_running) == (0, 1)


def test_a_promise_is_no_larger_than_the_sequence_can_become():
    driver = make_driver()
    driver.step(add_sequence(1, range(10), kind="remote", max_tokens=3))
    assert driver.events.load.num_blocks_promised == 4


def test_promises_are_capped_at_thirty_percent_of_the_pool():
    driver = make_driver(num_blocks=40)  # cap: 12
    driver.step(add_sequence(1, range(20), kind="remote", max_tokens=50))
    driver.step(add_sequence(2, range(20), kind="remote", max_tokens=50))
    [refused] = driver.events.refused
    assert (refused.seq_id, refused.reason) == (2, "no_room")
    driver.step(add_sequence(3, range(10), kind="remote", max_tokens=50))
    assert driver.events.load.num_blocks_promised == 12


def test_a_single_promise_may_exceed_the_cap():
    driver = make_driver(num_blocks=40)
    driver.step(add_sequence(1, range(100), kind="remote", max_tokens=50))
    assert driver.events.load.num_blocks_promised == 27


def test_the_choices_of_one_request_may_exceed_the_cap_together():
    driver = make_driver(num_blocks=40)  # cap: 12
    first, second, other = (
        add_sequence(seq_id, range(50), kind="remote", max_tokens=50) for seq_id in (1, 2, 3)
    )
    second = msgspec.structs.replace(second, request_id=first.request_id, choice=1)
    driver.step(first, second, other)
    assert [admitted.seq_id for admitted in driver.events.admitted] == [1, 2]
    assert [refused.seq_id for refused in driver.events.refused] == [3]


def test_nobody_else_gets_promised_blocks():
    driver = make_driver(num_blocks=12)
    driver.step(add_sequence(1, range(20), kind="remote", max_tokens=50))  # 7 blocks
    driver.step(add_sequence(2, range(50, 66), max_tokens=20))  # 4 blocks, wants up to 9
    driver.run()
    assert driver.events.load.num_waiting == 1
    driver.step(Bind(1))
    assert len(driver.events.bound[0].rows) == 5
    driver.step(Abort(1))
    driver.run()
    assert driver.tokens[2] == driver.lone_run(range(50, 66), max_tokens=20)


def test_a_promise_leaves_what_a_waiting_sequence_needs():
    driver = make_driver(num_blocks=20)
    driver.step(add_sequence(1, range(50, 98), kind="prefill"))  # 12 of 20 blocks
    driver.step(add_sequence(2, range(40), kind="local"))  # waits for 10
    driver.step(add_sequence(3, range(8), kind="remote", max_tokens=50))
    assert driver.events.refused[0].reason == "no_room"
    driver.step(Release(1))
    assert [s.seq_id for s in driver.events.started] == [2]


def test_a_promise_takes_a_place_in_the_batch():
    driver = make_driver(max_num_seqs=2)
    driver.step(
        add_sequence(1, range(8), kind="remote"),
        add_sequence(2, range(8)),
    )
    driver.step(add_sequence(3, range(8), kind="remote"))
    assert driver.events.refused[0].reason == "no_room"


def test_pinned_cached_blocks_survive_until_bind():
    driver = make_driver(num_blocks=16)
    driver.step(add_sequence(1, range(12), max_tokens=1))
    driver.step(add_sequence(2, range(12), kind="remote", max_tokens=2))
    assert driver.events.admitted[0].num_cached_blocks == 3
    for seq_id in range(3, 9):  # churns through all other blocks
        driver.step(add_sequence(seq_id, range(100 * seq_id, 100 * seq_id + 40), max_tokens=1))
    driver.step(Bind(2))
    driver.tokens[2] = [7]
    driver.step(Start(2, 7))
    driver.run()
    assert driver.finished[2] == "length"


def test_abort_frees_a_promised_and_a_bound_sequence():
    driver = make_driver()
    driver.step(
        add_sequence(1, range(10), kind="remote"), add_sequence(2, range(10), kind="remote")
    )
    driver.step(Bind(1))
    driver.step(Abort(1), Abort(2))
    driver.step(Bind(2), Start(1, 5))  # crossed with the aborts on their way
    load = driver.events.load
    assert (load.num_blocks_free, load.num_blocks_promised) == (64, 0)


def test_an_expired_promise_ends_but_bound_blocks_stay_with_the_front_that_fills_them():
    driver = make_driver()
    driver.step(
        add_sequence(1, range(10), kind="remote", deadline=1.0),
        add_sequence(2, range(10), kind="remote", deadline=1.0),
        Bind(1),
    )
    driver.clock.advance(2.0)
    driver.step()
    assert driver.finished == {2: "deadline_exceeded"}
    assert driver.num_free_blocks < 64
    driver.step(Start(1, 5))
    driver.step()
    assert driver.finished[1] == "deadline_exceeded"
    assert driver.num_free_blocks == 64


def test_a_first_token_that_ends_the_sequence_finishes_it_at_start():
    driver = make_driver()
    driver.step(add_sequence(1, range(10), kind="remote"), Bind(1))
    driver.step(Start(1, driver.runner.eos_token_ids[0]))
    assert driver.finished == {1: "stop"}
    assert driver.tokens == {}
    assert driver.num_free_blocks == 64


def test_credit_parks_a_remote_sequence_from_its_second_token_on():
    prefill, decode = make_driver(), make_driver()
    decode.step(add_sequence(1, range(10), kind="remote", credit=1), Bind(1))
    prefill.step(add_sequence(1, range(10), kind="prefill"))
    for source, target in zip(
        prefill.events.started[0].rows, decode.events.bound[0].rows, strict=True
    ):
        decode.row(target)[:] = prefill.row(source)
    decode.tokens[1] = prefill.tokens[1]
    decode.step(Start(1, prefill.tokens[1][0]))
    assert not decode.engine.has_work
    decode.step(Credit(1, 3))
    decode.run()
    assert decode.tokens[1] == decode.lone_run(range(10))[:3]


@pytest.mark.parametrize("slots", [16, 4])
def test_a_full_batch_takes_in_a_request_of_a_quiet_tenant_and_its_steps_stay_as_large(slots):
    prefill, decode = make_driver(num_blocks=256), make_driver(num_blocks=256, max_num_seqs=slots)
    for seq_id in range(slots):
        hand_off(prefill, decode, seq_id, range(seq_id, seq_id + 5), max_tokens=60)
    decode.step(add_sequence(16, range(9), kind="remote"))
    assert [refused.seq_id for refused in decode.events.refused] == [16]
    hand_off(prefill, decode, 17, range(17, 26), is_quiet=True)
    assert decode.events.num_step_seqs == slots
    assert 17 in decode.events.token_seq_ids
    assert slots - 1 not in decode.events.token_seq_ids
    decode.step(add_sequence(18, range(9), kind="remote", is_quiet=True))
    assert [refused.seq_id for refused in decode.events.refused] == [18]
    decode.run()
    assert len(decode.finished) == slots + 1

from typing import Any

from baton.engine.protocol.messages import Abort, AddSequence, Bind, Credit, Fork, Release, Start
from baton.testing.engine_driver import EngineDriver, add_sequence
from baton.testing.fake_runner import FakeRunner

BLOCK = 4


def make_driver(num_blocks: int = 64, mean_output_tokens: int = 0, **sizes: int) -> EngineDriver:
    runner = FakeRunner(
        block_size=BLOCK, max_model_len=120, mean_output_tokens=mean_output_tokens, num_layers=2
    )
    return EngineDriver(runner, num_blocks=num_blocks, **sizes)


def request(length: int, num_choices: int, **fields: Any) -> AddSequence:
    """ParallelSampling 0 .. num_choices - 1 of one prompt are sequences 1, 2, ..."""
    forks = tuple(Fork(1 + choice, choice) for choice in range(1, num_choices))
    return add_sequence(1, range(length), forks=forks, **fields)


def have_the_tokens_of_lone_runs(driver: EngineDriver, add: AddSequence) -> None:
    prompt = memoryview(add.token_ids).cast("I").tolist()
    for choice, seq_id in enumerate([1, *(fork.seq_id for fork in add.forks)]):
        lone = driver.runner.lone_run(prompt, add.sampling, choice)
        assert driver.tokens[seq_id] == lone, seq_id


def test_choices_of_a_prompt_compute_it_once_and_get_the_tokens_of_lone_runs():
    driver = make_driver()
    add = request(10, 3, max_tokens=9)
    driver.step(add)
    assert (driver.events.num_step_seqs, driver.events.num_step_tokens) == (1, 10)
    assert driver.events.token_seq_ids == [1, 2, 3]
    driver.step()
    assert (driver.events.num_step_seqs, driver.events.num_step_tokens) == (3, 3)
    driver.run()
    have_the_tokens_of_lone_runs(driver, add)
    assert driver.finished == dict.fromkeys([1, 2, 3], "length")
    assert driver.num_free_blocks == 64


def test_choices_share_the_blocks_of_their_prompt():
    driver = make_driver()
    driver.step(request(41, 4))
    driver.step()
    # 10 full blocks for all, and the last one for each.
    assert driver.num_free_blocks == 64 - 14


def test_a_prompt_in_chunks_is_started_once():
    driver = make_driver(max_num_seqs=4, max_step_tokens=8)
    add = request(30, 3)
    num_started = 0
    driver.step(add)
    while driver.engine.has_work:
        num_started += len(driver.events.started)
        driver.step()
    assert num_started == 1
    have_the_tokens_of_lone_runs(driver, add)


def test_a_first_token_that_is_the_last_ends_each_choice_by_itself():
    driver = make_driver()
    driver.step(request(10, 3, max_tokens=1))
    assert driver.finished == dict.fromkeys([1, 2, 3], "length")
    assert driver.num_free_blocks == 64


def test_forks_that_find_no_place_queue_and_find_the_prompt_in_the_cache():
    driver = make_driver(max_num_seqs=2)
    add = request(10, 4)
    driver.step(add)
    assert driver.events.token_seq_ids == [1, 2]
    assert driver.events.load.num_waiting == 2
    driver.run()
    have_the_tokens_of_lone_runs(driver, add)


def test_forks_that_find_no_block_queue():
    driver = make_driver(num_blocks=9)
    add = request(30, 4, max_tokens=5)
    driver.step(add)
    assert driver.events.token_seq_ids == [1]
    driver.run()
    have_the_tokens_of_lone_runs(driver, add)


def test_choices_without_credit_come_later():
    driver = make_driver()
    add = request(10, 3, credit=0)
    driver.step(add)
    assert not driver.engine.has_work
    driver.step(Credit(2, 100))
    assert driver.events.token_seq_ids == [2]
    driver.run()
    assert driver.finished == {2: "length"}
    driver.step(Credit(1, 100), Credit(3, 100))
    driver.run()
    have_the_tokens_of_lone_runs(driver, add)


def test_a_fork_can_be_aborted_before_and_after_its_prompt_is_done():
    driver = make_driver(max_num_seqs=4, max_step_tokens=8)
    add = request(20, 4)
    driver.step(add)
    driver.step(Abort(3))
    driver.step()
    driver.step(Abort(2))
    driver.run()
    assert driver.finished == {1: "length", 4: "length"}
    assert 3 not in driver.tokens
    assert driver.num_free_blocks == 64


def test_an_aborted_leader_computes_the_prompt_for_its_forks_and_is_gone_then():
    driver = make_driver(max_num_seqs=4, max_step_tokens=8)
    add = request(20, 3)
    driver.step(add)
    driver.step(Abort(1))
    driver.run()
    assert list(driver.finished) == [2, 3]
    assert 1 not in driver.tokens
    for choice, seq_id in ((1, 2), (2, 3)):
        lone = driver.runner.lone_run(range(20), add.sampling, choice)
        assert driver.tokens[seq_id] == lone


def test_a_request_whose_choices_are_all_aborted_leaves_nothing():
    driver = make_driver(max_num_seqs=4, max_step_tokens=8)
    driver.step(request(20, 3))
    driver.step(Abort(1), Abort(2), Abort(3))
    assert not driver.engine.has_work
    assert driver.num_free_blocks == 64
    assert driver.finished == {}


def test_a_preempted_leader_and_preempted_forks_are_computed_again():
    driver = make_driver(num_blocks=16)
    driver.step(add_sequence(9, range(50, 58), max_tokens=30, priority=1))
    add = request(20, 3, max_tokens=20)
    driver.step(add)
    num_preemptions = 0
    while driver.engine.has_work:
        driver.step()
        num_preemptions += driver.events.num_preemptions
    assert num_preemptions > 0
    have_the_tokens_of_lone_runs(driver, add)


def test_a_deadline_ends_all_choices_of_a_prompt():
    driver = make_driver(max_num_seqs=4, max_step_tokens=8)
    driver.step(request(20, 3, deadline=1.0))
    driver.clock.advance(2.0)
    driver.step()
    assert driver.finished == dict.fromkeys([1, 2, 3], "deadline_exceeded")
    assert driver.num_free_blocks == 64


def test_a_prefill_sequence_brings_a_first_token_for_each_choice():
    driver = make_driver()
    add = request(10, 3, kind="prefill", credit=1)
    driver.step(add)
    firsts = [driver.runner.lone_run(range(10), add.sampling, choice)[0] for choice in range(3)]
    assert driver.events.token_ids == firsts
    driver.run()
    driver.step(Release(1), Release(2), Release(3))
    assert driver.num_free_blocks == 64


def hand_over(prefill: EngineDriver, decode: EngineDriver, add: AddSequence) -> None:
    """Prefill on one engine, blocks and first tokens to the other."""
    fields = {"sampling": add.sampling, "kind": "prefill", "credit": 1}
    prefill.step(*[AddSequence(**{f: getattr(add, f) for f in add.__struct_fields__} | fields)])
    source_ids = prefill.events.started[0].rows
    while not prefill.tokens:
        prefill.step()
    seq_ids = [1, *(fork.seq_id for fork in add.forks)]
    decode.step(Bind(1))
    [bound] = decode.events.bound
    for source, target in zip(source_ids, bound.rows, strict=True):
        decode.row(target)[:] = prefill.row(source)
    for seq_id in seq_ids:
        decode.tokens[seq_id] = prefill.tokens[seq_id].copy()
    prefill.step(*[Release(seq_id) for seq_id in seq_ids])
    tokens = {seq_id: decode.tokens[seq_id][0] for seq_id in seq_ids}
    first = tokens.pop(1)
    decode.step(Start(1, first, tuple(tokens.items())))


def test_one_handoff_serves_all_choices():
    prefill, decode = make_driver(), make_driver()
    add = request(10, 3, kind="remote")
    decode.step(add)
    # 3 blocks of prompt and 2 to grow, and 3 of their own for each fork.
    assert decode.events.load.num_blocks_promised == 11
    assert decode.events.load.num_not_started == 3
    hand_over(prefill, decode, add)
    assert decode.events.load.num_blocks_promised == 0
    decode.run()
    have_the_tokens_of_lone_runs(decode, add)
    assert decode.num_free_blocks == 64


def test_remote_choices_need_a_place_each_and_their_blocks():
    driver = make_driver(max_num_seqs=2, num_blocks=10)
    driver.step(add_sequence(9, range(5)))
    driver.step(request(10, 2, kind="remote"))
    assert driver.events.refused[0].reason == "no_room"
    driver.run()
    driver.step(request(30, 4, kind="remote"))
    assert driver.events.refused[0].reason == "no_room"
    assert driver.engine.measure_load().num_blocks_promised == 0


def test_remote_choices_can_be_aborted_in_any_state():
    prefill, decode = make_driver(), make_driver()
    add = request(10, 4, kind="remote")
    decode.step(add)
    decode.step(Abort(2))
    decode.step(Abort(1))
    hand_over(prefill, decode, add)
    decode.run()
    assert list(decode.finished) == [3, 4]
    again = request(10, 2, kind="remote")
    decode.step(again)
    decode.step(Bind(1))
    decode.step(Abort(1), Abort(2))
    assert decode.num_free_blocks == 64
    assert decode.engine.measure_load().num_blocks_promised == 0

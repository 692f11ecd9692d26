"""Suspects compute in steps of their own, until they have proved harmless."""

from itertools import pairwise

import pytest

from baton.engine.protocol.messages import AddSequence, Fork
from baton.engine.step.engine import Engine, EngineConfig
from baton.testing.engine_driver import add_sequence
from baton.testing.fake_runner import FakeRunner
from baton.testing.virtual_clock import VirtualClock
from baton.wire.limits import NUM_TOKENS_ALONE


def make_engine(num_blocks: int = 64) -> Engine:
    config = EngineConfig("fake-model", "fake", "1", num_blocks, max_step_tokens=64)
    engine = Engine(config, FakeRunner(), VirtualClock())
    pool = bytearray(engine.num_pool_rows * engine.info.kv_spec.row_bytes)
    engine.runner.bind_pool(memoryview(pool))
    return engine


def steps_of(engine: Engine, *adds: AddSequence) -> list[set[str]]:
    """The requests of every step until nothing is left to do."""
    steps: list[set[str]] = []
    commands = list(adds)
    while commands or engine.has_work:
        batch = engine.begin_step(commands)
        commands = []
        if batch is not None:
            steps.append(set(engine.batch_request_ids()))
            engine.finish_step(engine.runner.run(batch))
        engine.check_integrity()
    return steps


def suspect(seq_id: int, **fields: object) -> AddSequence:
    add = add_sequence(seq_id, range(100), **fields)
    add.is_suspect = True
    return add


def test_a_suspect_shares_no_step_until_it_has_brought_a_few_tokens() -> None:
    steps = steps_of(make_engine(), add_sequence(1, range(9), max_tokens=40), suspect(2))
    with_suspect = [step for step in steps if "request-2" in step]
    num_alone = 2 + NUM_TOKENS_ALONE - 1  # its prompt takes two steps, the second brings a token
    assert with_suspect[:num_alone] == [{"request-2"}] * num_alone
    assert with_suspect[num_alone] == {"request-1", "request-2"}


def test_others_have_every_other_step_beside_suspects() -> None:
    adds = [add_sequence(1, range(9), max_tokens=40), suspect(2), suspect(3)]
    steps = steps_of(make_engine(), *adds)
    for name in ("request-2", "request-3"):
        own = [step for step in steps if name in step]
        assert own[:NUM_TOKENS_ALONE] == [{name}] * NUM_TOKENS_ALONE
    assert all("request-1" in first | second for first, second in pairwise(steps[:20]))


def test_suspects_without_company_do_not_wait_for_anybody() -> None:
    alone = steps_of(make_engine(), suspect(1, max_tokens=8))
    assert alone == steps_of(make_engine(), add_sequence(1, range(100), max_tokens=8))


def test_all_choices_of_a_suspect_compute_together() -> None:
    request = suspect(2, max_tokens=8)
    request.forks = (Fork(3, 1), Fork(4, 2))
    steps = steps_of(make_engine(), add_sequence(1, range(9), max_tokens=40), request)
    assert [step for step in steps if "request-2" in step][:3] == [{"request-2"}] * 3


@pytest.mark.parametrize("num_blocks", [8, 12])
def test_a_full_pool_holds_up_neither_suspects_nor_others(num_blocks: int) -> None:
    engine = make_engine(num_blocks)
    adds = [add_sequence(1, range(60), max_tokens=30), suspect(2, max_tokens=8)]
    steps = steps_of(engine, *adds, add_sequence(3, range(50), max_tokens=30))
    assert {"request-1", "request-2", "request-3"} == set().union(*steps)
    assert engine.measure_load().num_blocks_free == num_blocks


def test_parked_sequences_give_way_to_a_suspect_that_needs_their_blocks() -> None:
    engine = make_engine(8)
    engine.step([add_sequence(1, range(60), credit=1), add_sequence(2, range(60, 100), credit=1)])
    for _ in range(4):
        engine.step([])
    steps = steps_of(engine, suspect(3, max_tokens=4))
    assert {"request-3"} in steps

"""Probes: a step of one token that nobody sees, only when nothing else runs."""

from baton.engine.protocol.messages import Probe
from baton.engine.step.engine import Engine, EngineConfig
from baton.testing.engine_driver import add_sequence
from baton.testing.fake_runner import FakeRunner
from baton.testing.virtual_clock import VirtualClock

NUM_BLOCKS = 8


def make_engine() -> Engine:
    engine = Engine(
        EngineConfig("fake-model", "fake", "1", NUM_BLOCKS), FakeRunner(), VirtualClock()
    )
    pool = bytearray(engine.num_pool_rows * engine.info.kv_spec.row_bytes)
    engine.runner.bind_pool(memoryview(pool))
    engine.step([])  # the first turn reports the load
    return engine


def test_an_idle_engine_steps_when_it_is_probed_and_tells_nobody() -> None:
    engine = make_engine()
    before = engine.measure_load()
    batch = engine.begin_step([Probe()])
    assert batch is not None
    assert (engine.step_index, engine.batch_request_ids()) == (1, ())
    assert engine.finish_step(engine.runner.run(batch)) is None
    assert engine.measure_load() == before
    assert not engine.has_work
    assert engine.begin_step([]) is None
    engine.check_integrity()


def test_a_probe_has_room_when_every_block_is_taken() -> None:
    engine = make_engine()
    block_size = engine.info.kv_spec.block_size
    prompt = range(NUM_BLOCKS * block_size - 1)
    engine.step([add_sequence(1, prompt, kind="prefill", credit=1)])
    assert engine.measure_load().num_blocks_free == 0
    batch = engine.begin_step([Probe()])
    assert batch is not None
    assert batch.block_tables.tolist() == [[NUM_BLOCKS]]
    engine.finish_step(engine.runner.run(batch))
    engine.check_integrity()


def test_a_step_with_work_answers_the_probe() -> None:
    engine = make_engine()
    batch = engine.begin_step([add_sequence(1, range(5), max_tokens=1), Probe()])
    assert batch is not None
    assert batch.seq_ids == [1]
    engine.finish_step(engine.runner.run(batch))
    assert engine.begin_step([]) is None


def test_probes_do_not_change_what_is_measured() -> None:
    engine = make_engine()
    for _ in range(3):
        engine.step([Probe()])
    load = engine.measure_load()
    assert (load.prefill_tokens_per_s, load.decode_step_s) == (0, 0)

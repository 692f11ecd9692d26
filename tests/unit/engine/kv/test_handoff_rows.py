"""Rows of a small staging ring: leased whole, waited for in line, given back at once."""

import pytest

from baton.engine.kv.handoff_rows import num_ring_rows
from baton.engine.protocol.messages import Abort, Bind, Release, Start
from baton.testing.device_runner import DeviceFakeRunner
from baton.testing.engine_driver import EngineDriver, add_sequence
from baton.wire.kv_spec import KVSpec

BLOCK = 4
NUM_ROWS = 6
SPEC = KVSpec.of_layers(16, [(2, 8, 8, "float32")])


def make_driver(copy_polls: int = 0) -> EngineDriver:
    runner = DeviceFakeRunner(block_size=BLOCK, max_model_len=24, copy_polls=copy_polls)
    return EngineDriver(runner, num_blocks=64, num_rows=NUM_ROWS, max_waiting=8)


def free_rows(driver: EngineDriver) -> int:
    return driver.engine.measure_load().num_rows_free


def test_a_prompt_waits_for_rows_in_line_and_starts_when_others_were_handed_over() -> None:
    driver = make_driver()
    driver.step(add_sequence(1, range(13), kind="prefill"))  # 4 rows
    driver.step(add_sequence(2, range(20, 33), kind="prefill"))
    driver.step(add_sequence(3, range(50, 54), kind="prefill"))  # 1 row, and behind the other
    assert driver.events.started == []
    assert driver.events.load.num_waiting == 2
    assert not driver.engine.has_work, "only a command can change it"
    started = driver.step(Release(1)).started
    assert [each.seq_id for each in started] == [2, 3]
    assert free_rows(driver) == 1
    driver.step(Abort(2), Release(3))
    assert free_rows(driver) == NUM_ROWS


def test_blocks_that_the_peer_has_take_no_rows() -> None:
    driver = make_driver()
    driver.step(add_sequence(1, range(20), kind="prefill", num_peer_blocks=3))
    assert len(driver.events.started[0].rows) == 2
    assert free_rows(driver) == NUM_ROWS - 2


def test_a_remote_sequence_without_rows_is_refused_for_room_and_holds_nothing() -> None:
    driver = make_driver()
    driver.step(add_sequence(1, range(16), kind="remote", max_tokens=4))
    driver.step(add_sequence(2, range(30, 46), kind="remote", max_tokens=4))
    [refused] = driver.events.refused
    assert (refused.seq_id, refused.reason) == (2, "no_room")
    assert "4 rows of the staging ring" in refused.message
    assert driver.events.load.num_blocks_promised == 5
    driver.step(Abort(1))
    assert (free_rows(driver), driver.events.load.num_blocks_promised) == (NUM_ROWS, 0)


def test_rows_are_free_when_their_blocks_were_taken_in_although_nobody_reads() -> None:
    driver = make_driver()
    driver.step(add_sequence(1, range(16), kind="remote", credit=1), Bind(1))
    assert free_rows(driver) == NUM_ROWS - 4
    driver.step(Start(1, 7))
    assert not driver.engine.has_work, "it is parked"
    assert free_rows(driver) == NUM_ROWS


def test_a_row_is_bound_again_only_when_nothing_is_copied_into_it_any_more() -> None:
    driver = make_driver(copy_polls=3)
    engine, runner = driver.engine, driver.runner
    assert isinstance(runner, DeviceFakeRunner)
    engine.step([add_sequence(1, range(20), kind="prefill")])
    events = engine.step([Abort(1), add_sequence(2, range(30, 46), kind="remote"), Bind(2)])
    assert runner._copies, "its rows are still being filled for another"
    assert events is None or not events.bound
    for _ in range(20):
        events = engine.next_events() or engine.step([])
        if events is not None and events.bound:
            break
    assert events is not None
    assert events.bound
    assert not runner._copies


def test_a_lease_whose_sequence_is_gone_is_reported() -> None:
    driver = make_driver()
    driver.step(add_sequence(1, range(8), max_tokens=16))
    driver.engine._state.manager.rows.lease(9, 2)
    violations = list(driver.engine._commit.audit.look())
    assert [each.check for each in violations] == ["handoff_rows"]
    assert "[9]" in violations[0].detail


def test_a_ring_is_a_quarter_of_the_cache_and_holds_the_longest_sequence() -> None:
    assert num_ring_rows(SPEC, 4000, 640, None) == 1000
    assert num_ring_rows(SPEC, 100, 640, None) == 40
    assert num_ring_rows(SPEC, 30, 480, None) == 30
    gib = 2**30 // SPEC.row_bytes
    assert num_ring_rows(SPEC, 100 * gib, 640, None) == 16 * gib
    assert num_ring_rows(SPEC, 4000, 640, 50 * SPEC.row_bytes) == 50
    with pytest.raises(ValueError, match="raise --staging-memory to 81920 bytes"):
        num_ring_rows(SPEC, 4000, 640, 39 * SPEC.row_bytes)

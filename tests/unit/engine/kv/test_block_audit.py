"""Tests that plant broken books in a running engine and see each named by the audit."""

import random

import msgspec

from baton.engine.protocol.messages import Abort, StepEvents
from baton.engine.step.step_commit import LOOK_EVERY_STEPS
from baton.system.violation import Violation
from baton.testing.engine_driver import EngineDriver, add_sequence
from baton.testing.fake_runner import FakeRunner

PLENTY = 1_000_000


def running_driver(kind: str = "local") -> EngineDriver:
    """One sequence of request r1 that goes on for long."""
    driver = EngineDriver(FakeRunner(block_size=4, max_model_len=400), num_blocks=128)
    add = add_sequence(1, range(10), kind=kind, max_tokens=300)
    driver.step(msgspec.structs.replace(add, request_id="r1"))
    return driver


def audited(driver: EngineDriver) -> list[Violation]:
    """What the core reports of its books, without the driver's own checks."""
    reported: list[Violation] = []
    for _ in range(LOOK_EVERY_STEPS):
        events = driver.engine.step([])
        reported += events.violations if isinstance(events, StepEvents) else []
    return reported


def pool_of(driver: EngineDriver):
    return driver.engine._state.manager._pool


def test_a_sound_engine_has_no_violations_through_random_lives() -> None:
    rng = random.Random(4)
    driver = EngineDriver(FakeRunner(block_size=4, max_model_len=120), num_blocks=40)
    for seq_id in range(1, 60):
        add = add_sequence(seq_id, range(rng.randint(1, 30)), max_tokens=rng.randint(1, 40))
        events = driver.step(add, *([Abort(rng.randint(1, seq_id))] if rng.random() < 0.3 else []))
        assert not events.violations
    driver.run()
    assert not driver.events.violations


def test_a_block_that_left_all_books_is_reported() -> None:
    driver = running_driver()
    pool_of(driver)._blank.pop()
    assert [violation.check for violation in audited(driver)] == ["kv_blocks"]


def test_a_reference_that_nobody_holds_is_reported_with_its_block() -> None:
    driver = running_driver()
    (stray,) = pool_of(driver).allocate(1)
    (violation,) = audited(driver)
    assert violation.check == "kv_references"
    assert f"[{stray}]" in violation.detail


def test_a_block_freed_under_a_sequence_is_reported_with_its_request() -> None:
    driver = running_driver()
    seq = driver.engine._state.sequences.get(1)
    pool_of(driver).release([int(seq.table.ids[0])])
    violations = audited(driver)
    assert ("kv_references", "r1") in {(v.check, v.request_id) for v in violations}


def test_a_promise_whose_sequence_is_gone_is_reported_with_its_request() -> None:
    driver = running_driver()
    driver.step(
        msgspec.structs.replace(
            add_sequence(2, range(50, 60), kind="remote", max_tokens=20), request_id="r2"
        )
    )
    driver.engine._state.sequences._by_id.pop(2)
    violations = audited(driver)
    assert ("kv_promise", "r2") in {(v.check, v.request_id) for v in violations}


def test_a_promise_that_the_pool_forgot_is_reported() -> None:
    driver = running_driver()
    driver.step(add_sequence(2, range(50, 60), kind="remote", max_tokens=20))
    pool_of(driver).num_promised -= 1
    assert "kv_blocks" in {violation.check for violation in audited(driver)}


def test_the_books_are_looked_at_when_the_last_sequence_has_left():
    driver = running_driver()
    pool_of(driver).allocate(1)
    driver.engine.step([Abort(1)])
    first = driver.engine.step([add_sequence(3, range(5), max_tokens=2)])
    last = driver.engine.step([])
    assert first.violations == []
    assert [finished.seq_id for finished in last.finished] == [3]
    assert [violation.check for violation in last.violations] == ["kv_references"]
    assert last.step < LOOK_EVERY_STEPS

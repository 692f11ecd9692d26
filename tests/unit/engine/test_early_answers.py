"""What commands bring is told before the step of the others runs."""

from baton.engine.messages import Bind, StepEvents
from baton.testing.engine_driver import EngineDriver, add_sequence
from baton.testing.fake_runner import FakeRunner


def begin(driver: EngineDriver, *commands: object) -> StepEvents | None:
    assert driver.engine.begin_step(list(commands)) is not None  # type: ignore[arg-type]
    return driver.engine.take_answers()


def test_admission_and_binding_do_not_wait_for_a_running_step() -> None:
    driver = EngineDriver(FakeRunner(), num_blocks=64)
    driver.step(add_sequence(1, range(20)))

    admitted = begin(driver, add_sequence(2, range(30), kind="remote"))
    assert admitted is not None
    assert [a.seq_id for a in admitted.admitted] == [2]
    driver.engine.finish_step(driver.engine.runner.run(driver.engine.begin_step([])))  # type: ignore[arg-type]

    bound = begin(driver, Bind(2))
    assert bound is not None
    assert [b.seq_id for b in bound.bound] == [2]


def test_a_start_is_told_before_its_first_chunk_is_computed() -> None:
    driver = EngineDriver(FakeRunner(), num_blocks=64)

    answers = begin(driver, add_sequence(1, range(20), kind="prefill"))

    assert answers is not None
    assert [s.seq_id for s in answers.started] == [1]
    assert answers.progress == []


def test_a_step_without_answers_says_nothing_early() -> None:
    driver = EngineDriver(FakeRunner(), num_blocks=64)
    driver.step(add_sequence(1, range(20)))

    assert begin(driver) is None

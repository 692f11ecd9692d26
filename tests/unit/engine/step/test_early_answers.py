"""What commands bring is reported before the step of the others runs."""

from baton.engine.protocol.messages import Bind, Command, StepEvents
from baton.testing.engine_driver import EngineDriver, add_sequence
from baton.testing.fake_runner import FakeRunner


def early_answers(driver: EngineDriver, *commands: Command) -> StepEvents | None:
    """What is reported before the step runs; the step then runs to its end."""
    batch = driver.engine.begin_step(commands)
    assert batch is not None, "another sequence runs"
    answers = driver.engine.take_answers()
    driver.engine.finish_step(driver.runner.run(batch))
    return answers


def test_admission_and_binding_do_not_wait_for_a_running_step() -> None:
    driver = EngineDriver(FakeRunner(), num_blocks=64)
    driver.step(add_sequence(1, range(20)))

    admitted = early_answers(driver, add_sequence(2, range(30), kind="remote"))
    bound = early_answers(driver, Bind(2))

    assert admitted is not None
    assert [event.seq_id for event in admitted.admitted] == [2]
    assert bound is not None
    assert [event.seq_id for event in bound.bound] == [2]


def test_a_start_is_reported_before_its_first_chunk_is_computed() -> None:
    driver = EngineDriver(FakeRunner(), num_blocks=64)

    answers = early_answers(driver, add_sequence(1, range(20), kind="prefill"))

    assert answers is not None
    assert [s.seq_id for s in answers.started] == [1]
    assert answers.progress == []


def test_a_step_without_answers_says_nothing_early() -> None:
    driver = EngineDriver(FakeRunner(), num_blocks=64)
    driver.step(add_sequence(1, range(20)))

    assert early_answers(driver) is None

"""What the front is reported waits for the copies that were begun before it, in order.

What commands bring is reported before the step of the others runs.
"""

from baton.engine.protocol.messages import Bind, Command, EngineLoad, StepEvents
from baton.engine.step.report_queue import POLL_INTERVAL_S, ReportQueue
from baton.testing.device_runner import DeviceFakeRunner
from baton.testing.engine_driver import EngineDriver, add_sequence
from baton.testing.fake_runner import FakeRunner

NO_LOAD = EngineLoad(0, 0, 0, 0, 0, 0.0, 0.0)


class CopyingFakeRunner(DeviceFakeRunner):
    """Says what the test says of its copies."""

    num_ended = 0

    def poll_copies(self) -> int:
        return self.num_ended


def steps_taken(queue: ReportQueue) -> list[int]:
    steps = []
    while (events := queue.take()) is not None:
        steps.append(events.step)
    return steps


def test_reports_leave_in_order_and_after_the_copies_that_were_begun_before_them() -> None:
    runner = CopyingFakeRunner()
    queue = ReportQueue(runner)
    queue.put(StepEvents(1, NO_LOAD))
    runner.num_copies_begun = 2
    queue.put(StepEvents(2, NO_LOAD))
    queue.put(StepEvents(3, NO_LOAD))
    assert steps_taken(queue) == [1]
    runner.num_ended = 1
    assert steps_taken(queue) == []
    assert queue.next_poll_s == POLL_INTERVAL_S
    runner.num_ended = 2
    assert steps_taken(queue) == [2, 3]
    assert queue.next_poll_s is None


def test_nothing_waits_where_the_cache_is_the_shared_pool() -> None:
    queue = ReportQueue(None)
    queue.put(StepEvents(1, NO_LOAD))
    assert steps_taken(queue) == [1]


def test_progress_is_reported_once_its_blocks_are_shared_while_computing_goes_on() -> None:
    runner = DeviceFakeRunner(copy_polls=4)
    driver = EngineDriver(runner, num_blocks=24, max_num_seqs=8, max_step_tokens=16)
    engine = driver.engine
    block_ids: list[int] = []
    reported: list[tuple[int, int]] = []
    events = engine.step([add_sequence(1, range(40), kind="prefill")])
    for _ in range(20):
        for started in events.started if events else ():
            block_ids = started.rows
        for progress in events.progress if events else ():
            reported.append((progress.num_computed_tokens, engine.step_index))
            for block_id in block_ids[: progress.num_computed_tokens // 16]:
                assert driver.row(block_id) == runner.rows[block_id].data
        if events is None and not engine.has_work:
            assert len(reported) == 3 or engine.next_deadline() is not None
        events = engine.step([])
    assert [num_tokens for num_tokens, _ in reported] == [16, 32, 40]
    assert reported[0][1] == 3, "all three chunks have run"


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

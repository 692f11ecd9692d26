"""KV of a prompt is reported layer by layer while its step runs."""

from baton.engine.protocol.batch import StepBatch, StepResult
from baton.engine.protocol.messages import Command, Progress, Release, StepEvents
from baton.engine.protocol.progress_page import PAGE_BYTES, ProgressPage
from baton.testing.device_runner import DeviceFakeRunner
from baton.testing.engine_driver import EngineDriver, add_sequence
from baton.testing.fake_runner import FakeRunner

NUM_LAYERS = 12


class WatchedRunner(FakeRunner):
    """Notes when its steps end."""

    def __init__(self, sent: list[StepEvents | None]) -> None:
        super().__init__(num_layers=NUM_LAYERS)
        self._sent = sent

    def run(self, batch: StepBatch) -> StepResult:
        result = super().run(batch)
        self._sent.append(None)
        return result


def make_driver(runner: FakeRunner, **sizes: int) -> EngineDriver:
    row_bytes = runner.kv_spec.row_bytes
    return EngineDriver(runner, **({"num_blocks": 64, "min_group_bytes": row_bytes} | sizes))


def turn(driver: EngineDriver, sent: list[StepEvents | None], *commands: Command) -> None:
    driver.engine.turn(commands, ProgressPage(bytearray(PAGE_BYTES)), sent.append)


def split(sent: list[StepEvents | None]) -> tuple[list[Progress], list[Progress]]:
    """What was told before the step ended, and after."""
    end = sent.index(None)
    parts = sent[:end], sent[end + 1 :]
    early, late = ([p for events in part if events for p in events.progress] for part in parts)
    return early, late


def test_groups_of_layers_are_told_before_the_step_ends_and_all_layers_after_it() -> None:
    sent: list[StepEvents | None] = []
    driver = make_driver(WatchedRunner(sent))

    turn(driver, sent, add_sequence(1, range(100), kind="prefill"))

    early, late = split(sent)
    # Six full blocks are as many groups.
    assert [(p.num_computed_tokens, p.num_layers) for p in early] == [
        (99, mark) for mark in (2, 4, 6, 8, 10, 12)
    ]
    assert [(p.num_computed_tokens, p.num_layers) for p in late] == [(100, None)]
    assert sent[0] is not None
    assert [started.seq_id for started in sent[0].started] == [1]


def test_there_are_no_more_groups_than_eight() -> None:
    sent: list[StepEvents | None] = []
    driver = make_driver(WatchedRunner(sent))

    turn(driver, sent, add_sequence(1, range(900), kind="prefill"))

    assert [p.num_layers for p in split(sent)[0]] == [1, 3, 4, 6, 7, 9, 10, 12]


def test_a_block_whose_last_token_may_be_computed_again_is_not_told_early() -> None:
    sent: list[StepEvents | None] = []
    driver = make_driver(WatchedRunner(sent))

    turn(driver, sent, add_sequence(1, range(64), kind="prefill"))

    assert {p.num_computed_tokens // 16 for p in split(sent)[0]} == {3}


def test_a_chunk_that_is_not_the_last_is_told_whole() -> None:
    sent: list[StepEvents | None] = []
    driver = make_driver(WatchedRunner(sent), max_step_tokens=64)

    turn(driver, sent, add_sequence(1, range(100), kind="prefill"))

    assert {p.num_computed_tokens for p in split(sent)[0]} == {64}


def test_what_is_not_handed_over_or_small_or_copied_later_is_not_told_early() -> None:
    cases = [
        (WatchedRunner([]), {}, add_sequence(1, range(100))),
        (WatchedRunner([]), {"min_group_bytes": 1 << 30}, add_sequence(1, [7], kind="prefill")),
        (DeviceFakeRunner(num_layers=4), {}, add_sequence(1, range(100), kind="prefill")),
    ]
    for runner, sizes, add in cases:
        driver = make_driver(runner, **sizes)
        batch = driver.engine.begin_step([add])
        assert batch is not None
        assert driver.engine.layer_marks(batch, lambda events: None) is None


def test_the_books_agree_whatever_was_told_early() -> None:
    sent: list[StepEvents | None] = []
    driver = make_driver(WatchedRunner(sent))
    turn(driver, sent, add_sequence(1, range(100), kind="prefill"))
    reports = [events for events in sent if events is not None]

    turn(driver, sent, Release(1))

    assert [len(events.token_ids) for events in reports] == [0] * (len(reports) - 1) + [1]
    assert [bool(events.stored) for events in reports] == [False] * (len(reports) - 1) + [True]
    assert {events.step for events in reports} == {1}
    driver.engine.check_integrity()

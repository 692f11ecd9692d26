import pytest

from baton.engine.protocol.messages import Probe
from baton.engine.protocol.progress_page import CoreProgress
from baton.testing.virtual_clock import VirtualClock
from baton.worker.core_watch import CoreWatch, WatchLimits

LIMITS = WatchLimits(
    stall_s=1.5, stall_factor=10, first_step_s=60, hang_s=10, probe_s=3, max_starved_s=60
)


class PagedCore:
    """An engine client of which only the progress page matters."""

    def __init__(self) -> None:
        self.page = CoreProgress(5, False, (), num_commands=2, expected_s=0.01)
        self.num_commands_sent = 2
        self.sent: list[object] = []
        self.is_killed = False
        # The part of all time in which it waits for a CPU.
        self.starved_share = 0.0

    def progress(self) -> CoreProgress:
        return self.page

    def send(self, command: object) -> None:
        self.sent.append(command)
        self.num_commands_sent += 1

    def starved_s(self, elapsed_s: float) -> float:
        return self.starved_share * elapsed_s

    def kill(self) -> None:
        self.is_killed = True

    def step(self, *, is_busy: bool = True, expected_s: float | None = 0.01) -> None:
        self.page = CoreProgress(
            self.page.step + 1, is_busy, ("r1",), self.num_commands_sent, expected_s
        )


@pytest.fixture
def core() -> PagedCore:
    return PagedCore()


@pytest.fixture
def watch(core: PagedCore) -> CoreWatch:
    watch = CoreWatch(core, VirtualClock(), LIMITS)
    watch.tick(0.1)
    return watch


def pass_time(watch: CoreWatch, seconds: float) -> None:
    for _ in range(round(seconds / 0.1)):
        watch.tick(0.1)


def test_a_step_that_does_not_end_is_a_stall(core: PagedCore, watch: CoreWatch) -> None:
    core.step()
    pass_time(watch, 1.5)
    assert not watch.is_stalled
    pass_time(watch, 0.3)
    assert watch.is_stalled
    assert "has not moved for 1.7 s" in watch.reason()


def test_steps_that_follow_one_another_are_no_stall_however_long_they_go_on(core, watch) -> None:
    for _ in range(1000):
        core.step()
        pass_time(watch, 1.0)
        assert not watch.is_stalled


def test_a_step_that_should_take_long_may(core: PagedCore, watch: CoreWatch) -> None:
    core.step(expected_s=0.4)
    pass_time(watch, 3.9)
    assert not watch.is_stalled
    pass_time(watch, 0.4)
    assert watch.is_stalled


def test_the_first_step_of_its_kind_may_take_very_long(core: PagedCore, watch: CoreWatch) -> None:
    core.step(expected_s=None)
    pass_time(watch, 59)
    assert not watch.is_stalled
    pass_time(watch, 2)
    assert watch.is_stalled


def test_an_idle_core_takes_commands_at_once_whatever_its_last_step_was(core, watch) -> None:
    core.step(is_busy=False, expected_s=None)
    core.num_commands_sent += 1
    pass_time(watch, 1.8)
    assert watch.is_stalled


def test_a_core_that_never_stepped_is_given_time(core: PagedCore, watch: CoreWatch) -> None:
    core.page = CoreProgress(0, False, ())
    pass_time(watch, 59)
    assert not watch.is_stalled


def test_a_command_that_is_left_alone_is_a_stall(core: PagedCore, watch: CoreWatch) -> None:
    core.num_commands_sent += 1
    pass_time(watch, 1.8)
    assert watch.is_stalled


def test_an_idle_core_is_probed_and_its_silence_is_a_stall_within_eight_seconds(
    core: PagedCore, watch: CoreWatch
) -> None:
    pass_time(watch, 2.8)
    assert core.sent == []
    pass_time(watch, 0.2)
    assert core.sent == [Probe()]
    pass_time(watch, 1.7)
    assert watch.is_stalled


def test_an_idle_core_that_answers_its_probes_stays_healthy(core, watch) -> None:
    for _ in range(100):
        pass_time(watch, 1.0)
        if core.num_commands_sent > core.page.num_commands:
            core.step(is_busy=False)
        assert not watch.is_stalled
    assert 20 <= len(core.sent) <= 34


def test_a_busy_core_is_not_probed(core: PagedCore, watch: CoreWatch) -> None:
    for _ in range(100):
        core.step()
        pass_time(watch, 0.1)
    assert core.sent == []


def test_a_pause_of_the_front_itself_is_not_blamed_on_the_core(core: PagedCore) -> None:
    clock = VirtualClock()
    watch = CoreWatch(core, clock, LIMITS)
    core.step()
    watch.tick(0.1)
    # What `run` passes when its sleep took a minute.
    watch.tick(min(60.0, 0.3))
    assert not watch.is_stalled


def test_listeners_hear_when_it_stands_still_and_when_it_moves_again(core, watch) -> None:
    heard: list[bool] = []
    watch.on_change(heard.append)
    core.step()
    pass_time(watch, 2)
    core.step()
    pass_time(watch, 1)
    assert heard == [True, False]
    assert watch.reason() == ""


def test_a_core_that_hangs_for_good_is_ended(core: PagedCore, watch: CoreWatch) -> None:
    core.step()
    pass_time(watch, 11.4)
    assert not core.is_killed
    pass_time(watch, 0.4)
    assert core.is_killed


def test_a_core_that_waits_for_a_cpu_is_slow_and_not_stalled(core, watch) -> None:
    core.step()
    core.starved_share = 1.0
    pass_time(watch, 30)
    assert not watch.is_stalled
    assert not core.is_killed


def test_a_core_that_has_waited_for_a_cpu_and_then_hangs_is_found(core, watch) -> None:
    core.step()
    core.starved_share = 1.0
    pass_time(watch, 30)
    core.starved_share = 0.0
    pass_time(watch, 1.0)
    assert watch.is_stalled


def test_time_in_which_a_starved_core_did_run_counts(core, watch) -> None:
    core.step()
    core.starved_share = 0.75
    pass_time(watch, 3.6)
    assert not watch.is_stalled
    pass_time(watch, 0.4)
    assert watch.is_stalled


def test_a_core_may_wait_for_a_cpu_only_so_long(core, watch) -> None:
    core.step()
    core.starved_share = 1.0
    pass_time(watch, 61)
    assert not watch.is_stalled
    pass_time(watch, 1.5)
    assert watch.is_stalled


def test_patience_with_a_starved_core_begins_anew_with_each_step(core, watch) -> None:
    core.starved_share = 1.0
    for _ in range(4):
        core.step()
        pass_time(watch, 50)
        assert not watch.is_stalled

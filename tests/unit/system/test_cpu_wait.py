from pathlib import Path

import pytest

from baton.system.cpu_wait import CpuWait, own_wait_s

CORE, RANK = 7, 9


class Machine:
    """A /proc of processes with one thread each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def show(self, pid: int, state: str, ran_s: float, waited_s: float, children: str = "") -> None:
        task = self.folder / str(pid) / "task" / str(pid)
        task.mkdir(parents=True, exist_ok=True)
        (task / "schedstat").write_text(f"{ran_s * 1e9:.0f} {waited_s * 1e9:.0f} 12\n")
        (task / "stat").write_text(f"{pid} (a (core) R) {state} 1 1\n")
        (task / "children").write_text(children)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def wait(machine: Machine) -> CpuWait:
    machine.show(CORE, "R", 10, 2.0)
    wait = CpuWait(CORE, machine.folder)
    assert wait.last_s(0.1) == 0
    return wait


def test_a_wait_that_is_over_is_what_the_kernel_has_added(machine: Machine, wait: CpuWait) -> None:
    machine.show(CORE, "S", 10.01, 2.07)
    assert wait.last_s(0.1) == pytest.approx(0.07)


def test_a_ready_thread_that_ran_no_further_since_the_last_look_waited_all_the_time(
    machine: Machine, wait: CpuWait
) -> None:
    machine.show(CORE, "R", 10, 2.0)
    assert wait.last_s(0.1) == pytest.approx(0.1)


def test_a_thread_that_runs_all_the_time_waits_for_nothing(machine: Machine, wait: CpuWait) -> None:
    machine.show(CORE, "R", 10.1, 2.0)
    assert wait.last_s(0.1) == 0


def test_a_thread_that_woke_this_moment_has_waited_for_nothing(
    machine: Machine, wait: CpuWait
) -> None:
    machine.show(CORE, "S", 10.1, 2.0)
    wait.last_s(0.1)
    machine.show(CORE, "R", 10.1, 2.0)
    assert wait.last_s(0.1) == 0


@pytest.mark.parametrize("state", ["S", "D", "T"])
def test_a_thread_that_is_blocked_or_stopped_does_not_wait_for_a_cpu(machine, wait, state) -> None:
    machine.show(CORE, state, 10, 2.0)
    wait.last_s(0.1)
    assert wait.last_s(0.1) == 0


def test_a_wait_counts_only_as_far_as_the_time_that_is_asked_for(machine, wait) -> None:
    machine.show(CORE, "S", 10.1, 12.0)
    assert wait.last_s(0.1) == pytest.approx(0.1)


def test_a_child_that_waits_keeps_its_parent_waiting(machine, wait) -> None:
    machine.show(CORE, "S", 10.1, 2.0, children=f"{RANK}")
    machine.show(RANK, "R", 5, 0.0)
    wait.last_s(0.1)
    assert wait.last_s(0.1) == pytest.approx(0.1)


def test_nothing_is_known_of_a_process_that_has_ended(machine, wait) -> None:
    wait = CpuWait(1000, machine.folder)
    assert [wait.last_s(0.1), wait.last_s(0.1)] == [0, 0]


def test_the_waits_of_a_process_are_those_of_all_its_threads(tmp_path: Path) -> None:
    for thread, waited_s in ((7, 2.5), (8, 0.25)):
        task = tmp_path / "self" / "task" / str(thread)
        task.mkdir(parents=True)
        (task / "schedstat").write_text(f"1000000 {waited_s * 1e9:.0f} 12\n")
    (tmp_path / "self" / "task" / "9").mkdir()  # has just ended
    assert own_wait_s(tmp_path) == pytest.approx(2.75)

"""Processes that take turns in a benchmark: one without a task stands still."""

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from bench.machine import living, process_tree
from bench.measured_process import MeasuredProcess, Runner
from bench.serving.servers import Server

# Answers every task at once, and its child never rests.
RESTLESS = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
print("{}", flush=True)
for line in sys.stdin:
    print(line, end="", flush=True)
child.kill()
"""


def states(runner: Runner | MeasuredProcess) -> set[str]:
    return {process.status() for process in process_tree(runner.pid)}


def assert_they_stop(runner: Runner | MeasuredProcess) -> None:
    """One that is on a processor takes the signal when the kernel next looks at it."""
    deadline_s = time.monotonic() + 60
    while states(runner) != {psutil.STATUS_STOPPED}:
        assert time.monotonic() < deadline_s, states(runner)
        time.sleep(0.005)


def test_a_runner_and_its_children_stand_still_while_they_have_no_task(tmp_path: Path) -> None:
    runner = Runner([sys.executable, "-c", RESTLESS], tmp_path / "log", {})
    try:
        assert runner.read() == {}
        assert len(process_tree(runner.pid)) == 2
        runner.pause()
        assert_they_stop(runner)
        assert runner.ask({"number": 1}) == {"number": 1}
        assert_they_stop(runner)
        assert runner.ask({"number": 2}) == {"number": 2}
    finally:
        tree = process_tree(runner.pid)
        runner.stop()
    assert not living(tree)


@pytest.mark.parametrize(("name", "stops"), [("vllm", True), ("baton on vllm", False)])
def test_a_server_that_waits_for_its_turn_is_stopped_but_for_a_stack(
    tmp_path: Path, name: str, stops: bool
) -> None:
    idle = [sys.executable, "-c", "import time; time.sleep(99)"]
    process = MeasuredProcess(idle, tmp_path / "log", {})
    server = Server(name, process, started_at=0.0)
    try:
        server.rest()
        if stops:
            assert_they_stop(process)
        with server.turn():
            assert psutil.STATUS_STOPPED not in states(process)
        if stops:
            assert_they_stop(process)
        else:
            assert psutil.STATUS_STOPPED not in states(process)
    finally:
        server.stop()


def test_a_child_that_ended_and_that_nobody_reaps_does_not_live() -> None:
    code = (
        "import subprocess; child = subprocess.Popen(['true']);"
        "print(child.pid, flush=True); input()"  # a Popen that nobody holds is reaped
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        child = psutil.Process(int(parent.stdout.readline()))
        deadline_s = time.monotonic() + 60
        while child.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert child.is_running()
        assert [process.pid for process in process_tree(parent.pid)] == [parent.pid]
    finally:
        parent.communicate("\n")

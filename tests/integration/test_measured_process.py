"""Processes that take turns in a benchmark: whoever has no task stands still."""

import sys
from pathlib import Path

import psutil

from baton.bench.machine import process_tree
from baton.bench.measured_process import Runner

# Answers every task at once, and its child never rests.
RESTLESS = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
print("{}", flush=True)
for line in sys.stdin:
    print(line, end="", flush=True)
child.kill()
"""


def states(runner: Runner) -> set[str]:
    return {process.status() for process in process_tree(runner.pid)}


def test_a_runner_and_its_children_stand_still_while_they_have_no_task(tmp_path: Path) -> None:
    runner = Runner([sys.executable, "-c", RESTLESS], tmp_path / "log", {})
    try:
        assert runner.read() == {}
        assert len(process_tree(runner.pid)) == 2
        runner.pause()
        assert states(runner) == {psutil.STATUS_STOPPED}
        assert runner.ask({"number": 1}) == {"number": 1}
        assert states(runner) == {psutil.STATUS_STOPPED}
        assert runner.ask({"number": 2}) == {"number": 2}
    finally:
        tree = process_tree(runner.pid)
        runner.stop()
    assert not [process for process in tree if process.is_running()]

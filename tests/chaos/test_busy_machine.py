"""Programs beside the stack that take its CPUs: streams are slower, and stay where they are."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil

from tests.chaos.conftest import Target
from tests.chaos.streams import assert_same, story
from tests.chaos.trials import Trials

LOOPS_PER_CPU = 3
NUM_STREAMS, NUM_TOKENS = 4, 120
# Of the CPU time there is: a fair kernel gives the loops three quarters.
LEAST_TAKEN = 0.4


@contextlib.contextmanager
def busy_loops() -> Iterator[list[psutil.Process]]:
    """Each in a session of its own: the kernel gives it as much as all of the stack."""
    argv = [sys.executable, "-c", "while True: pass"]
    num_loops = LOOPS_PER_CPU * (os.cpu_count() or 1)
    loops = [subprocess.Popen(argv, start_new_session=True) for _ in range(num_loops)]
    try:
        yield [psutil.Process(loop.pid) for loop in loops]
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def cpu_s(loops: list[psutil.Process]) -> float:
    return sum(loop.cpu_times().user for loop in loops)


def test_streams_beside_busy_loops_stay_on_their_workers(target: Target, trials: Trials) -> None:
    body = story(max_tokens=NUM_TOKENS)
    right = target.right_answer(body)

    def trial(number: int) -> float:
        target.wait_until_quiet()
        before = target.num_moves()
        with busy_loops() as loops:
            began_s, ran_before_s = time.monotonic(), cpu_s(loops)
            streams = [target.stream(body) for _ in range(NUM_STREAMS)]
            for stream in streams:
                assert_same(stream.join(), right)
            took_s = time.monotonic() - began_s
            taken_s = cpu_s(loops) - ran_before_s
        assert taken_s >= LEAST_TAKEN * took_s * (os.cpu_count() or 1)
        assert target.num_moves() == before
        return took_s

    trials.run("Busy loops beside the stack", 20, trial, max_s=120.0)

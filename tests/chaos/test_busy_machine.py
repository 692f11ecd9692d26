"""Programs beside the stack that take its CPUs: streams are slower, and stay where they are."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator

from baton.system.cpu_wait import thread_times
from tests.chaos.conftest import Target
from tests.chaos.streams import assert_same, story
from tests.chaos.trials import Trials

LOOPS_PER_CPU = 3
NUM_STREAMS, NUM_TOKENS = 4, 120
# Of the time of a loop. It is ready all the time: what it neither ran nor waited is not known yet.
LEAST_READY = 0.6


@contextlib.contextmanager
def busy_loops() -> Iterator[list[int]]:
    """Each in a session of its own: the kernel gives it as much as all of the stack."""
    argv = [sys.executable, "-c", "while True: pass"]
    num_loops = LOOPS_PER_CPU * (os.cpu_count() or 1)
    loops = [subprocess.Popen(argv, start_new_session=True) for _ in range(num_loops)]
    try:
        yield [loop.pid for loop in loops]
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def ran_and_waited_s(loops: list[int]) -> tuple[float, float]:
    """Seconds that the loops ran, and that they were ready and had no CPU."""
    times = [times for pid in loops for _, times in thread_times(pid)]
    return sum(one.ran_s for one in times), sum(one.waited_s for one in times)


def test_streams_beside_busy_loops_stay_on_their_workers(target: Target, trials: Trials) -> None:
    body = story(max_tokens=NUM_TOKENS)
    right = target.right_answer(body)

    def trial(number: int) -> float:
        target.wait_until_quiet()
        before = target.num_moves()
        with busy_loops() as loops:
            began_s, before_s = time.monotonic(), ran_and_waited_s(loops)
            streams = [target.stream(body) for _ in range(NUM_STREAMS)]
            for stream in streams:
                assert_same(stream.join(), right)
            took_s = time.monotonic() - began_s
            after_s = ran_and_waited_s(loops)
        ran_s, waited_s = (after - before for after, before in zip(after_s, before_s, strict=True))
        assert ran_s + waited_s >= LEAST_READY * took_s * len(loops)
        assert waited_s >= ran_s, "the loops had CPUs to themselves"
        assert target.num_moves() == before
        return took_s

    trials.run("Busy loops beside the stack", 20, trial, max_s=120.0)

"""The kernel's own figures of a process that gets no CPU, and of one that is stopped."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from baton.system.cpu_wait import CpuWait
from tests import needs

pytestmark = needs.linux
# All on the same CPU: the niced one gets a hundredth of it while the other runs.
LOOP = "import os; os.sched_setaffinity(0, {%d}); os.nice(%d); print(flush=True)\nwhile True: pass"
PATIENCE_S = 60.0


@contextmanager
def loop(nice: int) -> Iterator[int]:
    """The id of a process that computes for ever."""
    program = LOOP % (min(os.sched_getaffinity(0)), nice)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process.pid
        finally:
            process.kill()


@pytest.fixture
def starved() -> Iterator[int]:
    with ExitStack() as loops:
        pid = loops.enter_context(loop(19))
        loops.enter_context(loop(0))
        yield pid


def wait_share(wait: CpuWait) -> float:
    """The share of the next tenth of a second in which the process waits for a CPU."""
    wait.last_s(0)
    began_s = time.monotonic()
    time.sleep(0.1)
    elapsed_s = time.monotonic() - began_s
    return wait.last_s(elapsed_s) / elapsed_s


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s


def test_a_process_that_gets_no_cpu_waits_and_one_that_is_stopped_does_not(starved: int) -> None:
    wait = CpuWait(starved)
    until(lambda: wait_share(wait) > 0.5)
    os.kill(starved, signal.SIGSTOP)
    until(lambda: Path(f"/proc/{starved}/stat").read_text().split()[2] == "T")
    assert wait_share(wait) == 0

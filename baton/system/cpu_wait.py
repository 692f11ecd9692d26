"""How long a process wanted a CPU and had none: the kernel's figures of each of its threads.

`/proc/PID/task/TID/schedstat` has the time that a thread ran and the time that it was ready and
waited for a CPU. The kernel adds a wait when it is over: of one that lasts it shows only that the
thread is ready (state R) and runs no further. A thread that was asleep at the last look and is
ready now may have woken this moment: its wait counts from now on. Waiting for a lock, a disk or a
signal is no such wait. Where there are no such files, nothing is known and no wait is found.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_READY = "R"


@dataclass(frozen=True, slots=True)
class ThreadTimes:
    """The kernel's figures of one thread, since it began."""

    ran_s: float
    waited_s: float
    is_ready: bool  # it runs or would, were there a CPU

    def wait_s(self, before: "ThreadTimes", elapsed_s: float) -> float:
        """The part of the last `elapsed_s` in which the thread waited for a CPU."""
        if self.is_ready and before.is_ready and self.ran_s == before.ran_s:
            return elapsed_s
        return min(elapsed_s, self.waited_s - before.waited_s)


class CpuWait:
    """Looks at the threads of one process and of its children, from call to call."""

    def __init__(self, pid: int, proc: Path = Path("/proc")) -> None:
        self._pid = pid
        self._proc = proc
        self._threads: dict[Path, ThreadTimes] = {}

    def last_s(self, elapsed_s: float) -> float:
        """The longest wait of a thread within the last `elapsed_s`; 0 in the first call."""
        before, self._threads = self._threads, dict(thread_times(self._pid, self._proc))
        waits = (
            times.wait_s(before[folder], elapsed_s)
            for folder, times in self._threads.items()
            if folder in before
        )
        return max(waits, default=0.0)


def own_wait_s(proc: Path = Path("/proc")) -> float:
    """Seconds that the threads of this process have waited for a CPU, all together, since they
    began; 0 where the kernel does not tell."""
    waited_ns = 0
    for folder in (proc / "self" / "task").glob("*"):
        with suppress(OSError, ValueError, IndexError):
            waited_ns += int((folder / "schedstat").read_text().split()[1])
    return waited_ns / 1e9


def thread_times(pid: int, proc: Path = Path("/proc")) -> Iterator[tuple[Path, ThreadTimes]]:
    """The threads of a process and of its children, by their folders."""
    for folder in (proc / str(pid) / "task").glob("*"):
        try:
            ran_ns, waited_ns, *_ = map(int, (folder / "schedstat").read_text().split())
            # The state follows the name, which stands in brackets and may have some itself.
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            children = (folder / "children").read_text().split()
        except (OSError, ValueError):
            continue  # the thread has just ended, or this kernel does not tell
        yield folder, ThreadTimes(ran_ns / 1e9, waited_ns / 1e9, state == _READY)
        for child in children:
            yield from thread_times(int(child), proc)

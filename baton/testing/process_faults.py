"""SIGKILL, SIGSTOP, SIGCONT and SIGTERM aimed at one process of a stack under test.

A test whose fault missed proves nothing, so everything here is checked: the target must be a
living descendant of the stack's first process, the signal goes through a pidfd (a pid that is used
again cannot be hit), and `verify` reads the result in /proc. Linux only.
"""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from baton.testing.faults import FaultDidNotHappen

VERIFY_TIMEOUT_S = 60.0
_POLL_S = 0.002
# Parents that are followed at most: more than any stack has.
_MAX_DEPTH = 32
_DEAD_STATES = "ZX"


class WrongTarget(AssertionError):
    """The process is not one of the stack under test, or it was dead already."""


@dataclass(frozen=True, slots=True)
class ProcessState:
    """From /proc/<pid>/stat. `state` is its letter: R, S, D, T (stopped), Z (dead), ...;
    `start_ticks` together with the pid names one process for good."""

    state: str
    parent_pid: int
    start_ticks: int


def process_state(pid: int) -> ProcessState | None:
    """The state of a process; None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the name in parentheses, which may hold anything.
    fields = text[text.rindex(")") + 2 :].split()
    return ProcessState(fields[0], int(fields[1]), int(fields[19]))


class ProcessFault:
    """One process of the stack whose first process is `stack_pid`. Raises WrongTarget."""

    def __init__(self, pid: int, *, stack_pid: int) -> None:
        self.pid = pid
        state = process_state(pid)
        if state is None or state.state in _DEAD_STATES:
            raise WrongTarget(f"process {pid} is dead already")
        if not _descends(state, stack_pid):
            raise WrongTarget(f"process {pid} is not one of the stack of process {stack_pid}")
        self._start_ticks = state.start_ticks
        self._sent: signal.Signals | None = None

    def kill(self) -> Self:
        """Send SIGKILL: the process ends at once, without a message."""
        return self._send(signal.SIGKILL)

    def stop(self) -> Self:
        """Send SIGSTOP: its sockets stay open and nothing is answered."""
        return self._send(signal.SIGSTOP)

    def resume(self) -> Self:
        """Send SIGCONT."""
        return self._send(signal.SIGCONT)

    def terminate(self) -> Self:
        """Send SIGTERM: the process drains and ends."""
        return self._send(signal.SIGTERM)

    def is_alive(self) -> bool:
        """True while this very process runs or is stopped."""
        state = self._state()
        return state is not None and state.state not in _DEAD_STATES

    def verify(self, timeout_s: float = VERIFY_TIMEOUT_S) -> None:
        """Check that the last signal takes effect in time: the process is gone (kill, terminate),
        stands still (stop), or runs (resume). Raises FaultDidNotHappen."""
        assert self._sent is not None, "no signal was sent"
        deadline = time.monotonic() + timeout_s
        while not self._has_happened():
            if time.monotonic() > deadline:
                state = self._state()
                raise FaultDidNotHappen(
                    f"process {self.pid} is in state {state.state if state else 'gone'} "
                    f"{timeout_s} s after {self._sent.name}"
                )
            time.sleep(_POLL_S)

    def _send(self, number: signal.Signals) -> Self:
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            raise WrongTarget(f"process {self.pid} is dead already") from None
        try:
            # Only now is it sure that the pid and the descriptor mean the same process.
            if not self.is_alive():
                raise WrongTarget(f"process {self.pid} is dead already")
            signal.pidfd_send_signal(pidfd, number)
        finally:
            os.close(pidfd)
        self._sent = number
        return self

    def _has_happened(self) -> bool:
        state = self._state()
        if self._sent in (signal.SIGKILL, signal.SIGTERM):
            return state is None or state.state in _DEAD_STATES
        if state is None or state.state in _DEAD_STATES:
            return False
        return (self._sent == signal.SIGSTOP) == self._is_stopped()

    def _is_stopped(self) -> bool:
        """True when all of its threads are stopped."""
        tasks = Path(f"/proc/{self.pid}/task")
        states = [process_state(int(task.name)) for task in tasks.iterdir()]
        return all(state is None or state.state == "T" for state in states)

    def _state(self) -> ProcessState | None:
        """The state; None when the process is gone, even if another one has its pid now."""
        state = process_state(self.pid)
        return state if state and state.start_ticks == self._start_ticks else None


def _descends(state: ProcessState, ancestor_pid: int) -> bool:
    parent: ProcessState | None = state
    for _ in range(_MAX_DEPTH):
        if parent is None or parent.parent_pid == 0:
            return False
        if parent.parent_pid == ancestor_pid:
            return True
        parent = process_state(parent.parent_pid)
    return False

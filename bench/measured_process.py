"""Runs what is measured: a process in a session of its own, ahead of whatever else runs.

Linux shares CPU time between sessions (autogroups) first, so `nice` alone has no effect across
them. A runner is such a process that reads one JSON line per task and answers with one; several
can be loaded at once, and only the one that has a task runs.
"""

import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import psutil

from baton.system.parent_death import die_with_parent
from bench.machine import living, process_tree

# Needs privileges; without them the kernel refuses, and the run is only noisier.
_AUTOGROUP_NICE = -12
_STOP_GRACE_S = 60.0
_KILL_GRACE_S = 10.0
_KILL_POLL_S = 0.01
_SHOWN_LOG_LINES = 15


def put_ahead(pid: int) -> None:
    """Put the session of a process ahead of others, where the kernel lets us."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(_AUTOGROUP_NICE))


class RunnerFailed(Exception):
    """A measured process ended or answered nonsense; the message has its last lines."""


class MeasuredProcess:
    """A started process; `stop` ends it and everything that it started."""

    def __init__(
        self,
        argv: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        *,
        is_runner: bool = False,
    ) -> None:
        """`log` gets stderr, and stdout too unless it is a runner."""
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                argv,
                env=dict(environment),
                stdin=subprocess.PIPE if is_runner else subprocess.DEVNULL,
                stdout=subprocess.PIPE if is_runner else output,
                stderr=output,
                start_new_session=True,
                preexec_fn=die_with_parent,
                text=True,
            )
        put_ahead(self.pid)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stdin(self) -> IO[str]:
        assert self.process.stdin is not None
        return self.process.stdin

    @property
    def stdout(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    def pause(self) -> None:
        """Stop all its processes, which may look for work all the time."""
        for process in process_tree(self.pid):
            with contextlib.suppress(psutil.Error):
                process.suspend()

    def resume(self) -> None:
        """Undo `pause`."""
        for process in process_tree(self.pid):
            with contextlib.suppress(psutil.Error):
                process.resume()

    def failure(self) -> RunnerFailed:
        """Describe the end of a process that should not have ended."""
        lines = self._log.read_text(errors="replace").splitlines()[-_SHOWN_LOG_LINES:]
        status = self.process.poll()
        return RunnerFailed("\n".join([f"ended with {status}, see {self._log}:", *lines]))

    def stop(self) -> None:
        """End of input and SIGINT, then SIGKILL to those of its processes that are left."""
        self.resume()
        tree = process_tree(self.pid)
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(_STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.process.wait(_KILL_GRACE_S)
        _kill(tree)
        if self.process.stdout is not None:
            self.process.stdout.close()


def _kill(processes: Sequence[psutil.Process]) -> None:
    """SIGKILL to those that live, until none does."""
    deadline_s = time.monotonic() + _KILL_GRACE_S
    while left := living(processes):
        if time.monotonic() > deadline_s:
            raise RunnerFailed(f"not ended by SIGKILL: {[process.pid for process in left]}")
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(_KILL_POLL_S)


def run_to_end(argv: Sequence[str], log: Path, environment: Mapping[str, str]) -> list[Any]:
    """The JSON lines that a process prints until it ends by itself. Raises RunnerFailed."""
    process = MeasuredProcess(argv, log, environment, is_runner=True)
    try:
        process.stdin.close()
        lines = [json.loads(line) for line in process.stdout]
        if process.process.wait() != 0:
            raise process.failure()
    finally:
        process.stop()
    return lines


class Runner:
    """A measured process that answers tasks."""

    def __init__(self, argv: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self._process = MeasuredProcess(argv, log, environment, is_runner=True)

    @property
    def pid(self) -> int:
        return self._process.pid

    def pause(self) -> None:
        """Stop it: an engine that is through may still spin beside the next one."""
        self._process.pause()

    def ask(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Have one task done; paused before and after. Raises RunnerFailed."""
        self._process.resume()
        try:
            return self._ask(task)
        finally:
            self.pause()

    def _ask(self, task: Mapping[str, Any]) -> dict[str, Any]:
        try:
            self._process.stdin.write(json.dumps(task) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._process.failure() from None
        return self.read()

    def stop(self) -> None:
        self._process.stop()

    def read(self) -> dict[str, Any]:
        """The next line it writes, such as that it has loaded. Raises RunnerFailed."""
        line = self._process.stdout.readline()
        if not line:
            raise self._process.failure()
        answer: dict[str, Any] = json.loads(line)
        return answer

"""Runs the services of one local stack as child processes: start, watch, restart, drain in order.

Each child is its own session (the terminal's Ctrl-C reaches only the supervisor, which drains in
order) and gets a signal from the kernel when the supervisor dies, so that no process stays behind.
Output goes to one log file per service.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO

from baton.runtime.process import STATUS_MISCONFIGURED
from baton.system.parent_death import die_with_parent

MAX_LOG_BYTES = 10 * 1024 * 1024
SHOWN_LOG_LINES = 5
_FIRST_BACKOFF_S = 0.25
_MAX_BACKOFF_S = 5.0
_STEADY_AFTER_S = 5.0
_KILL_AFTER_S = 40.0


class StartFailed(Exception):
    """A service cannot start; the message is one clear line."""


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """One child process. Services of a lower `stop_rank` are stopped before those of a higher."""

    name: str
    argv: list[str]
    environment: Mapping[str, str]
    stop_rank: int
    endpoint: str = ""
    metrics_url: str = ""


@dataclass(slots=True)
class _Child:
    spec: ServiceSpec
    process: asyncio.subprocess.Process | None = None
    num_restarts: int = 0
    started_unix_s: float = 0.0
    stopping: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Supervisor:
    """Keeps `specs` running until `stop`. `announce` prints one line for people."""

    def __init__(
        self, specs: list[ServiceSpec], log_folder: Path, announce: Callable[[str], None]
    ) -> None:
        self._children = [_Child(spec) for spec in specs]
        self._log_folder = log_folder
        self._announce = announce
        self._ready = False
        self.is_stopping = False
        self._failure: StartFailed | None = None
        self.on_change: Callable[[], None] = lambda: None

    async def run(self) -> None:
        """Start everything; returns when all services have been stopped.

        Raises StartFailed when a service is misconfigured and the stack is not ready yet.
        """
        self._log_folder.mkdir(parents=True, exist_ok=True)
        async with asyncio.TaskGroup() as group:
            for child in self._children:
                group.create_task(self._keep_running(child))
        if self._failure is not None:
            raise self._failure

    def mark_ready(self) -> None:
        """From now on a service that dies is restarted whatever its exit status."""
        self._ready = True

    def pids(self) -> dict[str, int]:
        """Running services by name."""
        return {
            child.spec.name: child.process.pid
            for child in self._children
            if child.process is not None and child.process.returncode is None
        }

    def rows(self) -> dict[str, dict[str, str | int | float]]:
        """The services as the state file has them; pid 0 = it does not run now."""
        pids = self.pids()
        return {
            child.spec.name: {
                "pid": pids.get(child.spec.name, 0),
                "endpoint": child.spec.endpoint,
                "metrics_url": child.spec.metrics_url,
                "started_unix_s": child.started_unix_s,
                "num_restarts": child.num_restarts,
            }
            for child in self._children
        }

    async def stop(self) -> None:
        """Drain by rank: SIGTERM, wait, and SIGKILL for a process that does not end in time."""
        self.is_stopping = True
        self.on_change()
        for rank in sorted({child.spec.stop_rank for child in self._children}):
            group = [child for child in self._children if child.spec.stop_rank == rank]
            for child in group:
                child.stopping = True
                self._signal(child, signal.SIGTERM)
            waits = [asyncio.ensure_future(child.ended.wait()) for child in group]
            await asyncio.wait(waits, timeout=_KILL_AFTER_S)
            for child in group:
                self._signal(child, signal.SIGKILL)
            await asyncio.gather(*waits)

    def kill(self) -> None:
        """End everything at once."""
        self.is_stopping = True
        for child in self._children:
            child.stopping = True
            self._signal(child, signal.SIGKILL)

    async def _keep_running(self, child: _Child) -> None:
        backoff_s = _FIRST_BACKOFF_S
        try:
            while not child.stopping:
                started = time.monotonic()
                status = await self._run_once(child)
                if child.stopping:
                    break
                if self._reject(child, status):
                    return
                if time.monotonic() - started > _STEADY_AFTER_S:
                    backoff_s = _FIRST_BACKOFF_S
                child.num_restarts += 1
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, _MAX_BACKOFF_S)
        finally:
            child.ended.set()

    async def _run_once(self, child: _Child) -> int:
        spec = child.spec
        with self._open_log(spec.name) as log:
            child.process = await asyncio.create_subprocess_exec(
                *spec.argv,
                env={**os.environ, **spec.environment},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=partial(die_with_parent, signal.SIGTERM),
            )
        if child.stopping:
            self._signal(child, signal.SIGKILL)
        child.started_unix_s = time.time()
        self.on_change()
        status = await child.process.wait()
        self.on_change()
        return status

    def _reject(self, child: _Child, status: int) -> bool:
        """Announce that a service died; True when restarting it would be useless."""
        lines = self._last_lines(child.spec.name)
        if status == STATUS_MISCONFIGURED and not self._ready:
            message = lines[-1] if lines else f"exit status {status}"
            self._failure = self._failure or StartFailed(f"{child.spec.name}: {message}")
            self.kill()
            return True
        if status == 0:
            self._announce(f"{child.spec.name} has ended; starting it again")
            return False
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        self._announce(f"{child.spec.name} ended with {how}; restarting it. Its last lines:")
        for line in lines:
            self._announce(f"    {line}")
        return False

    def _open_log(self, name: str) -> IO[bytes]:
        path = self._log_folder / f"{name}.log"
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size > MAX_LOG_BYTES:
                path.replace(path.with_suffix(".log.1"))
        return path.open("ab")

    def _last_lines(self, name: str) -> list[str]:
        path = self._log_folder / f"{name}.log"
        try:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - 16_384))
                text = file.read().decode(errors="replace")
        except OSError:
            return []
        return [line[:300] for line in text.splitlines() if line.strip()][-SHOWN_LOG_LINES:]

    @staticmethod
    def _signal(child: _Child, number: signal.Signals) -> None:
        if child.process is not None and child.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.process.send_signal(number)

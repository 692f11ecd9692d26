"""Writes down the time of the fleet's workers, of which every gateway tells once a minute.

One line a minute for each worker goes into the usage folder of this replica. Nothing waits for the
disk, and a line that could not be written is made up for by the next one.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from baton.runtime import logs
from baton.wire import worker_log
from baton.wire.v1 import quota_pb2
from baton.wire.worker_log import WorkerLine
from services.quota.archive import RunBlocking, run_in_thread

# The least time between two lines of one life of a worker.
INTERVAL_S = 55.0
_LOOK_S = 5.0
# More than a fleet has workers in a few minutes.
_MAX_LIVES = 16_384
_MAX_ID_CHARS = 256

_log = logs.get("quota.workers")


@dataclass(slots=True)
class _Life:
    """The newest figures of one life of a worker, and the last line about it."""

    newest: WorkerLine
    written_s: float = float("-inf")
    written_us: int = -1


class WorkerArchive:
    """The workers that gateways tell of. `unix_s` is the time of day."""

    def __init__(
        self,
        folder: Path,
        unix_s: Callable[[], float],
        *,
        run_blocking: RunBlocking = run_in_thread,
    ) -> None:
        self._folder = folder
        self._unix_s = unix_s
        self._run_blocking = run_blocking
        self._lives: OrderedDict[tuple[str, int], _Life] = OrderedDict()

    def note(self, workers: Iterable[quota_pb2.WorkerTotals]) -> None:
        """Take what a gateway tells."""
        now_ms = int(self._unix_s() * 1000)
        for worker in workers:
            if not 0 < len(worker.worker_id) <= _MAX_ID_CHARS:
                continue
            line = worker_log.from_totals(worker, now_ms)
            life = self._lives.setdefault((line.worker_id, line.boot_epoch), _Life(line))
            self._lives.move_to_end((line.worker_id, line.boot_epoch))
            # Two gateways may know different routers.
            if line.uptime_us > life.newest.uptime_us:
                life.newest = line
            if len(self._lives) > _MAX_LIVES:
                self._lives.popitem(last=False)

    async def run(self, stopping: asyncio.Event) -> None:
        """Write what is due every few seconds, and all at the end."""
        while not stopping.is_set():
            try:
                async with asyncio.timeout(_LOOK_S):
                    await stopping.wait()
            except TimeoutError:
                await self.write()
        await self.write_all()

    async def write(self) -> None:
        """Append a line for each worker whose last one is a minute old."""
        due_s = self._unix_s() - INTERVAL_S
        await self._write([life for life in self._lives.values() if life.written_s <= due_s])

    async def write_all(self) -> None:
        """Append what is not written yet."""
        await self._write(list(self._lives.values()))

    async def _write(self, lives: Iterable[_Life]) -> None:
        changed = [life for life in lives if life.newest.uptime_us > life.written_us]
        lines = [life.newest for life in changed]
        for life in changed:
            life.written_s, life.written_us = self._unix_s(), life.newest.uptime_us
        if lines:
            try:
                await self._run_blocking(partial(self._append, lines))
            except OSError as error:
                _log.error("workers_not_written", error=str(error))

    def _append(self, lines: Iterable[WorkerLine]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        texts: dict[str, list[bytes]] = {}
        for line in lines:
            texts.setdefault(line.file_name, []).append(worker_log.encode(line))
        for name, parts in texts.items():
            with (self._folder / name).open("ab") as file:
                file.write(b"".join(parts))

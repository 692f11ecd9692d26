"""Usage records that the quota service did not acknowledge in time: kept on disk, replayed later.

One line per record (checksum and base64 of the protobuf), appended with group commit: the records
that arrive during one write and fsync go into the next. Replaying is safe because settling is
idempotent by usage id. A torn last line, left by a crash, is skipped.
"""

import asyncio
import base64
import os
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from google.protobuf.message import DecodeError

from baton.runtime import logs
from baton.wire.failures import BatonError
from baton.wire.v1 import quota_pb2
from services.gateway.clients.protocols import CallContext, QuotaClient, RunInThread

MAX_RECORDS = 200_000
REPLAY_EVERY_S = 1.0
REPLAY_TIMEOUT_S = 5.0

_log = logs.get("outbox")


class OutboxFile(Protocol):
    """A file in which records survive a crash. Its methods block; they are called in a thread."""

    def read(self) -> list[bytes]:
        """All lines."""

    def append(self, lines: list[bytes]) -> None:
        """Add lines, which are durable on return. Raises OSError."""

    def replace(self, lines: list[bytes]) -> None:
        """Replace the contents by exactly these lines. Raises OSError."""


class DiskFile:
    """An append-only file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[bytes]:
        try:
            return self._path.read_bytes().splitlines()
        except FileNotFoundError:
            return []

    def append(self, lines: list[bytes]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        _write(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, lines)

    def replace(self, lines: list[bytes]) -> None:
        fresh = self._path.with_suffix(".new")
        _write(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, lines)
        fresh.replace(self._path)


def _write(path: Path, flags: int, lines: list[bytes]) -> None:
    descriptor = os.open(path, flags, 0o600)
    with os.fdopen(descriptor, "ab" if flags & os.O_APPEND else "wb") as file:
        file.write(b"".join(line + b"\n" for line in lines))
        file.flush()
        os.fsync(file.fileno())


class Outbox:
    """Records that wait for the quota service. `run` commits and replays until cancelled."""

    def __init__(self, file: OutboxFile, quota: QuotaClient, in_thread: RunInThread) -> None:
        self._file = file
        self._quota = quota
        self._in_thread = in_thread
        self._waiting: dict[str, quota_pb2.UsageRecord] = {}
        self._uncommitted: list[tuple[bytes, asyncio.Future[None]]] = []
        self._changed = asyncio.Event()
        # Appending and compacting touch the file one after the other.
        self._file_use = asyncio.Lock()
        self.num_dropped = 0

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    async def put(self, record: quota_pb2.UsageRecord) -> None:
        """Keep a record; returns when it is on disk, or when that failed (counted and logged)."""
        if len(self._waiting) >= MAX_RECORDS:
            self.num_dropped += 1
            _log.error("outbox_full", request_id=record.request_id)
            return
        self._waiting[record.request_id] = record
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._uncommitted.append((_line(record), committed))
        self._changed.set()
        await committed

    async def run(self) -> None:
        """Read the records that an earlier life left, then commit and replay."""
        for line in await self._in_thread(self._file.read):
            record = _record(line)
            if record is not None:
                self._waiting[record.request_id] = record
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._commit_loop())
            tasks.create_task(self._replay_loop())

    async def flush(self, timeout_s: float) -> None:
        """Settle the waiting records now, as far as quota answers in time: a gateway that leaves
        for good then leaves none behind."""
        try:
            async with asyncio.timeout(timeout_s):
                if self._waiting and await self._replay():
                    await self._compact()
        except TimeoutError:
            _log.warning("outbox_not_empty", num_records=len(self._waiting))

    async def _commit_loop(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._commit()

    async def _commit(self) -> None:
        while self._uncommitted:
            group, self._uncommitted = self._uncommitted, []
            lines = [line for line, _ in group]
            async with self._file_use:
                await self._on_disk(partial(self._file.append, lines))
            for _, committed in group:
                if not committed.done():
                    committed.set_result(None)

    async def _replay_loop(self) -> None:
        while True:
            if self._waiting and await self._replay():
                await self._compact()
            await asyncio.sleep(REPLAY_EVERY_S)

    async def _replay(self) -> bool:
        """Settle waiting records until the first failure; True when any was settled."""
        settled = False
        for record in list(self._waiting.values()):
            context = CallContext(record.request_id, REPLAY_TIMEOUT_S)
            try:
                await self._quota.settle(record, context)
            except BatonError as error:
                if error.row.retryable or error.row.http_status >= 500:
                    self._put_last(record.tenant)
                    return settled
                self.num_dropped += 1
                _log.error("record_refused", request_id=record.request_id, reason=error.reason)
            self._waiting.pop(record.request_id, None)
            settled = True
        return settled

    def _put_last(self, tenant: str) -> None:
        """Begin the next round with other tenants: quota may refuse this tenant's records alone."""
        late = [each.request_id for each in self._waiting.values() if each.tenant == tenant]
        for request_id in late:
            self._waiting[request_id] = self._waiting.pop(request_id)

    async def _compact(self) -> None:
        async with self._file_use:
            lines = [_line(record) for record in self._waiting.values()]
            await self._on_disk(partial(self._file.replace, lines))

    async def _on_disk(self, work: Callable[[], None]) -> None:
        try:
            await self._in_thread(work)
        except OSError as error:
            _log.error("outbox_not_written", error=error.strerror or "")


def _line(record: quota_pb2.UsageRecord) -> bytes:
    data = record.SerializeToString()
    return b"%08x %b" % (zlib.crc32(data), base64.b64encode(data))


def _record(line: bytes) -> quota_pb2.UsageRecord | None:
    checksum, _, encoded = line.partition(b" ")
    try:
        data = base64.b64decode(encoded, validate=True)
        if int(checksum, 16) != zlib.crc32(data):
            return None
        return quota_pb2.UsageRecord.FromString(data)
    except (ValueError, DecodeError):
        return None

"""The archiver: moves usage records from Redis to daily files. Append, fsync, only then delete.

After a crash between fsync and delete the same entries come again. They are recognised by their
request and left out (`usage_files`), and so are records that a Redis failover let in twice. One
archiver at a time holds a lock in Redis. Should two overlap after a long stall, readers of the
archive still count each request once. An archived record leaves Redis.

Only tenants of which a record may wait are looked at: a set that all replicas add to. A tenant is
taken off before its stream is read, so a record that comes meanwhile puts it there again. What an
archiver took with it when it died, its successor finds: a new holder of the lock looks at all.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from google.protobuf.message import DecodeError

from baton.runtime import logs
from baton.wire import usage_log
from baton.wire.failures import Unavailable
from baton.wire.key_limits import tenant_root
from baton.wire.key_registry import TENANTS_KEY
from baton.wire.usage_log import UsageLine
from baton.wire.v1 import quota_pb2
from services.quota import instruments
from services.quota.store import Argument, Store, StoreRefused
from services.quota.usage_files import UsageFiles

LOCK_KEY = "baton:archiver"
UNARCHIVED_KEY = "baton:unarchived"
LAPSED_REASON = "lease_expired"

LOCK_MS = 15_000
_TENANTS_PER_BATCH = 50
_ENTRIES_OF_TENANT = 200
_log = logs.get("quota.archive")

RunBlocking = Callable[[Callable[[], None]], Awaitable[None]]


async def run_in_thread(work: Callable[[], None]) -> None:
    """Run file work without blocking the event loop."""
    await asyncio.to_thread(work)


@dataclass
class _Batch:
    """What one write takes to the disk, and the commands that then delete it from Redis."""

    lines: list[UsageLine] = field(default_factory=list)
    rejected: list[dict[bytes, bytes]] = field(default_factory=list)
    archived: list[Sequence[Argument]] = field(default_factory=list)


class Archiver:
    """Empties the usage streams of all tenants into UsageFiles."""

    def __init__(
        self,
        store: Store,
        folder: Path,
        *,
        token: str,
        interval_s: float = 1.0,
        run_blocking: RunBlocking = run_in_thread,
    ) -> None:
        self._store = store
        self._folder = folder
        self._token = token
        self._interval_s = interval_s
        self._run_blocking = run_blocking
        self._files: UsageFiles | None = None
        self._woken: set[str] = set()

    def wake(self, tenant: str) -> None:
        """Note that a record of this tenant may wait; the next round archives it."""
        self._woken.add(tenant)

    async def run(self, stopping: asyncio.Event) -> None:
        """Archive until `stopping`, then once more.

        During an outage of Redis or of the disk records stay in Redis until they are safe.
        """
        while not stopping.is_set():
            await self._round()
            try:
                async with asyncio.timeout(self._interval_s):
                    await stopping.wait()
            except TimeoutError:
                continue
        await self._round()
        with contextlib.suppress(Unavailable):
            await self._release_lock()

    async def archive_all(self) -> bool:
        """Archive until no record waits; returns whether this archiver holds the lock."""
        while True:
            await self._tell_woken()
            if not await self._hold_lock():
                self._files = None
                return False
            await self._tell_woken()
            tenants = await self._store.execute("SPOP", UNARCHIVED_KEY, _TENANTS_PER_BATCH)
            if not tenants:
                return True
            await self._archive_batch([name.decode() for name in tenants])

    async def _round(self) -> None:
        try:
            await self.archive_all()
        except Unavailable:
            _log.warning("archive_waits", why="redis")
        except OSError as error:
            _log.error("archive_waits", why="disk", error=str(error))

    async def _tell_woken(self) -> None:
        """Tell all replicas, and the next life, which tenants to look at."""
        if not self._woken:
            return
        woken, self._woken = self._woken, set()
        names = sorted(woken)
        try:
            # TENANTS_KEY lacks a tenant that no registry declares (Redis was lost).
            await self._store.execute_all(
                [("SADD", TENANTS_KEY, *names), ("SADD", UNARCHIVED_KEY, *names)]
            )
        except Unavailable:
            self._woken |= woken
            raise

    async def _hold_lock(self) -> bool:
        """Take or renew the lock; its new holder looks at all tenants."""
        if await self._store.execute("SET", LOCK_KEY, self._token, "NX", "PX", LOCK_MS):
            tenants = await self._store.execute("SMEMBERS", TENANTS_KEY)
            self._woken.update(name.decode() for name in tenants)
            return True
        if await self._store.execute("GET", LOCK_KEY) != self._token.encode():
            return False
        await self._store.execute("PEXPIRE", LOCK_KEY, LOCK_MS)
        return True

    async def _release_lock(self) -> None:
        """Release the lock, so that another replica need not wait for its expiry."""
        if await self._store.execute("GET", LOCK_KEY) == self._token.encode():
            await self._store.execute("DEL", LOCK_KEY)

    async def _archive_batch(self, tenants: list[str]) -> None:
        batch = _Batch()
        try:
            for tenant in tenants:
                # One tenant's corrupt stream is logged by the store, and does not stop the others.
                with contextlib.suppress(StoreRefused):
                    await self._read_stream(tenant, batch)
            if batch.archived:
                await self._run_blocking(partial(self._write, batch))
                await self._store.execute_all(batch.archived)
        except BaseException:
            self._woken.update(tenants)
            raise

    async def _read_stream(self, tenant: str, batch: _Batch) -> None:
        stream = f"{tenant_root(tenant)}:usage"
        entries = await self._store.execute("XRANGE", stream, "-", "+", "COUNT", _ENTRIES_OF_TENANT)
        if not entries:
            return
        lines, rejected = read_entries(tenant, entries)
        batch.lines += lines
        batch.rejected += rejected
        batch.archived.append(("XDEL", stream, *(entry_id for entry_id, _ in entries)))
        if len(entries) == _ENTRIES_OF_TENANT:
            self._woken.add(tenant)

    def _write(self, batch: _Batch) -> None:
        files = self._files or UsageFiles(self._folder)
        # A failed write drops the remembered requests: their lines may not be on the disk.
        self._files = None
        num_new = files.append(batch.lines)
        files.reject(batch.rejected)
        self._files = files
        outcomes = instruments.QUOTA_ARCHIVED_RECORDS
        outcomes.labels("written").inc(num_new)
        outcomes.labels("repeated").inc(len(batch.lines) - num_new)
        outcomes.labels("rejected").inc(len(batch.rejected))


def read_entries(
    tenant: str, entries: list[Any]
) -> tuple[list[UsageLine], list[dict[bytes, bytes]]]:
    """Read stream entries: the usage lines, and the entries that cannot be read."""
    lines, rejected = [], []
    for entry_id, flat in entries:
        fields = flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))
        settled_ms = int(entry_id.split(b"-")[0])
        try:
            lines.append(_read_entry(tenant, fields, settled_ms))
        except (DecodeError, KeyError, ValueError) as error:
            _log.error("usage_rejected", tenant=tenant, entry=entry_id.decode(), error=repr(error))
            rejected.append(fields)
    return lines, rejected


def _read_entry(tenant: str, fields: dict[bytes, bytes], settled_ms: int) -> UsageLine:
    """Read one entry, as lua/settle.lua or (for a lapsed lease) lua/leases.lua wrote it."""
    cost, version = int(fields[b"cost"]), fields[b"price"].decode().split(" ", 3)[3]
    if b"record" in fields:
        record = quota_pb2.UsageRecord.FromString(fields[b"record"])
    else:
        record = quota_pb2.UsageRecord(
            request_id=fields[b"lapsed"].decode(),
            tenant=tenant,
            key_id=fields[b"key_id"].decode(),
            model=fields[b"model"].decode(),
            started_unix_ms=int(fields[b"started"]),
            num_prompt_tokens=int(fields[b"prompt"]),
            num_output_tokens=int(fields[b"produced"]),
            finish_reason=LAPSED_REASON,
            num_attempts=1,
            provisional=True,
        )
    return msgspec.structs.replace(
        usage_log.from_record(record, settled_ms), cost=cost, price_version=version
    )

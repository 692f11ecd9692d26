"""The keys: loads the registry file into Redis, and looks a key up by its digest.

Because the lookup is by digest, its time does not show how much of a guessed key is right. The file
is loaded at the start, when it changes, and when Redis came back empty (its marker is gone). A
lookup that misses checks both before it refuses, so that a key works as soon as it is created.
Knows nothing of the limits' meaning; `baton.wire.key_registry` owns the formats.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from baton.runtime import logs
from baton.wire import failures, key_registry
from baton.wire.key_registry import Command, KeyRecord
from baton.wire.v1 import quota_pb2
from services.quota import instruments
from services.quota.store import Store

_DIGEST_BYTES = 32
_log = logs.get("quota.registry")

ReadRegistry = Callable[[Path], Awaitable[dict[str, KeyRecord]]]
Restore = Callable[[list[KeyRecord]], Awaitable[list[Command]]]
Stamp = tuple[int, int, int]


async def read_in_thread(path: Path) -> dict[str, KeyRecord]:
    """Read the registry file without blocking the event loop."""
    return await asyncio.to_thread(key_registry.read, path)


async def nothing_to_restore(records: list[KeyRecord]) -> list[Command]:
    return []


class Registry:
    """The keys in Redis, kept equal to the registry file; without a file, those in Redis alone.

    `restore` returns the commands that an empty Redis gets before the keys' limits.
    """

    def __init__(
        self,
        store: Store,
        file: Path | None,
        *,
        fresh_for_s: float = 5.0,
        read: ReadRegistry = read_in_thread,
        restore: Restore = nothing_to_restore,
    ) -> None:
        self._store = store
        self._file = file
        self._fresh_for_s = fresh_for_s
        self._read = read
        self._restore = restore
        self._loading = asyncio.Lock()
        self._loaded_stamp: Stamp | None = None

    async def authenticate(self, digest: bytes) -> quota_pb2.AuthenticateResponse:
        """Return the principal of a key. Raises AuthenticationFailed, Unavailable."""
        if len(digest) != _DIGEST_BYTES:
            raise failures.AuthenticationFailed("the API key is not valid")
        name = key_registry.principal_key(digest)
        data = await self._store.execute("GET", name)
        if data is None:
            # Look again even if this refresh loaded nothing: another one may have just now.
            await self.refresh()
            data = await self._store.execute("GET", name)
        if data is None:
            raise failures.AuthenticationFailed("the API key is not valid")
        record = _record(data)
        return quota_pb2.AuthenticateResponse(
            tenant=record.tenant,
            key_id=record.key_id,
            limits=record.limits.to_wire(),
            allowed_models=record.allowed_models,
            priority=record.priority,
            fresh_for_s=self._fresh_for_s,
        )

    async def refresh(self) -> bool:
        """Load the file if it changed or Redis lost it; returns whether it was loaded.

        A file that cannot be read is logged; the keys loaded before stay. Raises Unavailable.
        """
        if self._file is None:
            return False
        async with self._loading:
            stamp = _stamp(self._file)
            in_redis = await self._store.execute("EXISTS", key_registry.LOADED_KEY)
            if in_redis and stamp == self._loaded_stamp:
                return False
            try:
                await self._load(self._file, stamp, came_back_empty=not in_redis)
            except key_registry.RegistryError as error:
                instruments.QUOTA_REGISTRY_LOADS.labels("unusable").inc()
                _log.error("registry_unusable", error=str(error))
                return False
            return True

    async def _load(self, file: Path, stamp: Stamp | None, *, came_back_empty: bool) -> None:
        records = list((await self._read(file)).values())
        if came_back_empty:
            await self._store.execute_all(await self._restore(records))
        await self._store.execute_all(
            command for record in records for command in key_registry.redis_commands(record)
        )
        await self._store.execute("SET", key_registry.LOADED_KEY, len(records))
        self._loaded_stamp = stamp
        instruments.QUOTA_REGISTRY_LOADS.labels("loaded").inc()
        _log.info("registry_loaded", num_keys=len(records), came_back_empty=came_back_empty)


def _record(data: bytes) -> KeyRecord:
    try:
        return key_registry.decode_record(data)
    except key_registry.RegistryError as error:
        _log.error("key_record_corrupt", error=str(error))
        raise failures.Unavailable(
            "the key's record cannot be read", reason="quota_unavailable"
        ) from error


def _stamp(file: Path) -> Stamp | None:
    """A stamp that changes whenever the file is appended to or replaced; None without a file."""
    try:
        stat = file.stat()
    except FileNotFoundError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino

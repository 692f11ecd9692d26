"""The keys as their files have them, for the time in which the store does not answer.

The files are the truth, but lag behind the store: a Secret reaches the pods a minute or two after
it was written. So a key that is new may be missing here, and what was revoked is refused by what
this replica knows of revocations (revocations.py).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from baton.runtime import logs
from baton.wire import failures, key_registry
from baton.wire.key_limits import KeyLimits
from baton.wire.key_registry import Entries, KeyRecord
from services.quota.revocations import Revocations

ReadRegistry = Callable[[Path], Awaitable[Entries]]
Source = tuple[Path, ReadRegistry]
Stamp = tuple[int, int, int]

_log = logs.get("quota.file_keys")


async def read_in_thread(path: Path) -> Entries:
    """Read the registry file without blocking the event loop."""
    return await asyncio.to_thread(key_registry.read, path)


def stamps_of(sources: Sequence[Source]) -> list[Stamp | None]:
    """Stamps that change whenever a file is appended to or replaced; None without a file."""
    return [_stamp(part) for file, _ in sources for part in key_registry.files(file)]


class FileKeys:
    """Looks keys up by their digests; reads the files when they have changed."""

    def __init__(self, sources: Sequence[Source], revocations: Revocations) -> None:
        self._sources = sources
        self._revocations = revocations
        self._reading = asyncio.Lock()
        self._read_stamps: list[Stamp | None] | None = None
        self._limits: dict[str, KeyLimits] = {}
        self._by_digest: dict[str, KeyRecord] = {}

    async def find(self, digest: str) -> KeyRecord | None:
        """The key that has this digest and is not revoked."""
        async with self._reading:
            stamps = stamps_of(self._sources)
            if stamps != self._read_stamps:
                await self._read()
                self._read_stamps = stamps
        record = self._by_digest.get(digest)
        return None if record is None or self._revocations.knows(record) else record

    def limits_of(self, owner: str) -> KeyLimits | None:
        """The limits of a tenant or an organisation, as they were when a key was found."""
        return self._limits.get(owner)

    async def _read(self) -> None:
        entries = Entries()
        await self._revocations.add(())  # reads what earlier lives have kept
        for file, read in self._sources:
            try:
                entries |= await _read_without_store(file, read)
            except key_registry.RegistryError as error:
                _log.error("registry_unusable", error=str(error))
        self._by_digest = {record.digest: record for record in entries.keys.values()}
        self._limits = {owner: each.limits for owner, each in entries.limits.items()}


async def _read_without_store(file: Path, read: ReadRegistry) -> Entries:
    """What a file says, also where reading it would change the store. Raises RegistryError."""
    try:
        return await read(file)
    except failures.Unavailable:
        return await read_in_thread(file)


def _stamp(file: Path) -> Stamp | None:
    try:
        stat = file.stat()
    except FileNotFoundError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino

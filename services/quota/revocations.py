"""The revoked keys, for good, by their digests: in Redis, and in a file beside the usage archive.

The files with the keys may lag: a Secret reaches the pods a minute or two after it was written. So
a replica that loads them, into a Redis that came back empty for one, must not bring back a key that
was revoked meanwhile. Each replica keeps what it has seen in Redis, and gives it what it has lost.
"""

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from baton.runtime import logs
from baton.wire.key_registry import REVOKED_KEY, Entries, KeyRecord
from services.quota.store import Store

_FILE = "revoked-keys"
_DIGEST_CHARS = 64
_log = logs.get("quota.revocations")


class Revocations:
    """The revocations that this replica knows. Without a folder it forgets them when it ends."""

    def __init__(self, store: Store, folder: Path | None = None) -> None:
        self._store = store
        self._file = folder / _FILE if folder else None
        self._known: set[str] = set()
        # None before the file was read.
        self._written: set[str] | None = None

    async def holds(self, digest: str) -> bool:
        """True when a key is revoked. Raises Unavailable."""
        if digest in self._known:
            return True
        return bool(await self._store.execute("SISMEMBER", REVOKED_KEY, digest))

    def knows(self, record: KeyRecord) -> bool:
        """True when this replica knows that a key is revoked, whatever Redis says."""
        return self._applied(record).revoked

    async def add(self, digests: Iterable[str]) -> None:
        """Keep more of them, whether Redis answers or not."""
        self._known.update(digests)
        if self._file is None:
            return
        try:
            await asyncio.to_thread(self._write, self._file)
        except OSError as error:
            _log.error("revocations_not_written", error=str(error))

    async def follow(self) -> None:
        """Agree with Redis, if it has more of them or fewer. Raises Unavailable."""
        if await self._store.execute("SCARD", REVOKED_KEY) != len(self._known):
            await self.agree()

    async def agree(self) -> None:
        """Take over what Redis has, and give it what it has lost. Raises Unavailable."""
        told = {digest.decode() for digest in await self._store.execute("SMEMBERS", REVOKED_KEY)}
        await self.add(told)
        await self._store.execute_all(
            ("SADD", REVOKED_KEY, digest) for digest in sorted(self._known - told)
        )

    def applied_to(self, entries: Entries) -> Entries:
        """The same keys, revoked where that is known."""
        keys = {name: self._applied(record) for name, record in entries.keys.items()}
        return Entries(keys, entries.limits)

    def _applied(self, record: KeyRecord) -> KeyRecord:
        if record.revoked or record.digest not in self._known:
            return record
        return msgspec.structs.replace(record, revoked=True)

    def _write(self, path: Path) -> None:
        """Append what the file lacks, durably; at first, read it."""
        if self._written is None:
            self._written = _read(path)
            self._known |= self._written
        missing = self._known - self._written
        if not missing:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        # A line that a crash left half written is ended first.
        data = "".join(f"\n{digest}" for digest in sorted(missing)) + "\n"
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, data.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._written |= missing


def _read(path: Path) -> set[str]:
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return set()
    return {line for line in lines if len(line) == _DIGEST_CHARS}

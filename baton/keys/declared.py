"""Keys and limits that a file declares and nobody else writes: a line that is taken away ends what
it declared, and one that is put back brings it back.

Redis keeps the lines that the file had, so that a line that went while no quota service ran is
missed at the next start. Knows no Redis client: commands go through a function.
"""

import asyncio
from pathlib import Path

import msgspec

from baton.keys.redis_copy import Execute
from baton.wire import key_registry
from baton.wire.key_limits import KeyLimits, OwnerLimits
from baton.wire.key_registry import REVOKED_KEY, Command, Entries, Record

# Key id or owner -> its line.
DECLARED_KEY = "baton:declared"


class DeclaredKeys:
    """Reads the file for the registry, and ends in Redis what is in it no more."""

    def __init__(self, execute: Execute) -> None:
        self._execute = execute
        self._last: Entries | None = None

    async def read(self, path: Path) -> Entries:
        """Read the file. Raises RegistryError, and Unavailable."""
        entries = await asyncio.to_thread(key_registry.read, path)
        # A file that is read again because Redis came back may lag behind another replica's.
        if entries != self._last:
            await self._end_missing(entries)
            self._last = entries
        return entries

    async def _end_missing(self, entries: Entries) -> None:
        lines = {_name(record): key_registry.encode(record) for record in entries.records()}
        known: dict[bytes, bytes] = await self._execute("HGETALL", DECLARED_KEY)
        missing = {name: line for name, line in known.items() if name.decode() not in lines}
        for line in missing.values():
            for record in key_registry.parse(line, DECLARED_KEY).records():
                for command in _end(record):
                    await self._execute(*command)
        if missing:
            await self._execute("HDEL", DECLARED_KEY, *missing)
        if lines:
            fields = (part for pair in lines.items() for part in pair)
            await self._execute("HSET", DECLARED_KEY, *fields)


def _end(record: Record) -> list[Command]:
    """The commands after which Redis refuses a key, or has no limits of an owner. Unlike a key that
    was revoked, it may come back."""
    if isinstance(record, OwnerLimits):
        return key_registry.redis_commands(msgspec.structs.replace(record, limits=KeyLimits()))
    ended = key_registry.redis_commands(msgspec.structs.replace(record, revoked=True))
    return [command for command in ended if command[1] != REVOKED_KEY]


def _name(record: Record) -> str:
    return record.owner if isinstance(record, OwnerLimits) else record.key_id

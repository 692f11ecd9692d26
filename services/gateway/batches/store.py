"""The files and the batches of all tenants, in the Redis of the stored responses.

Every key begins with the name of its tenant, in one hash slot. Besides there is one list of the
batches that have not ended, each with the lease of the gateway that works on it. The answers of a
batch go to the ends of two files as they come; a bit for each line says that it has its answer, so
that none is written twice.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from baton.wire.failures import InvalidRequest, LimitExceeded, quoted
from services.gateway.stored.store import Argument, BatchLimits, Store

SCRIPT_NAMES = ("batch_add", "batch_line", "batch_step", "file_add", "file_delete", "lease")
# Content that does not become a file is gone after so long.
_UNNAMED_S = 900
# The names of batches, which clients may write: beside them are keys of other kinds.
_BATCH_ID = re.compile(r"batch_[0-9a-f]{32}")
_OPEN_ROOT = "baton:open-batches:{open}"
# The creation of a batch takes less.
_GRACE_S = 10.0
# So many are looked at when a gateway looks for work.
_MAX_FREE = 10_000


@dataclass(frozen=True, slots=True)
class BatchKey:
    """The name of a batch among those of all tenants."""

    tenant: str
    batch_id: str

    @property
    def member(self) -> str:
        """Its name in the list of open batches."""
        return f"{self.batch_id} {self.tenant}"


@dataclass(frozen=True, slots=True)
class LineResult:
    """The answer to one line of a batch, as a line. `counts`: what it adds to the batch's."""

    number: int
    text: bytes
    is_failed: bool
    counts: Mapping[str, int]


def script_text(name: str) -> str:
    """A whole script, with the part that those of a tenant have in common."""
    folder = resources.files("services.gateway.batches") / "lua"
    parts = (name,) if name == "lease" else ("shared", name)
    return "\n".join((folder / f"{part}.lua").read_text() for part in parts)


class BatchStore:
    """Files and batches. Every method may raise Unavailable."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._commands = store.commands
        self._clock = store.clock

    @property
    def limits(self) -> BatchLimits:
        return self._store.limits.batches

    @property
    def ttl_s(self) -> float:
        return self._store.limits.ttl_s

    async def check(self, tenant: str) -> None:
        """Raise InvalidRequest when nothing of this tenant is kept, Unavailable when the server is
        nearly full."""
        if not self._store.keeps(tenant):
            raise InvalidRequest("this server keeps nothing of this tenant", reason="not_found")
        await self._store.check_room()

    async def has_room(self, tenant: str) -> bool:
        """True while a tenant's answers have room. Raises Unavailable as `check` does."""
        await self._store.check_room()
        used: bytes | None = await self._commands.execute("GET", f"{_root(tenant)}:bytes")
        return int(used or 0) < self.limits.max_bytes_of_tenant

    async def begin_content(self, tenant: str, file_id: str, piece: bytes) -> None:
        """Write the first piece of content that becomes a file with `add_file`."""
        await self._commands.execute("SET", _content(tenant, file_id), piece, "EX", _UNNAMED_S)

    async def add_content(self, tenant: str, file_id: str, piece: bytes) -> None:
        """Write the next piece."""
        await self._commands.execute("APPEND", _content(tenant, file_id), piece)

    async def drop_content(self, tenant: str, file_id: str) -> None:
        """Forget content that does not become a file."""
        await self._commands.execute("DEL", _content(tenant, file_id))

    async def content(self, tenant: str, file_id: str, begin: int, num_bytes: int) -> bytes:
        """A piece of content; shorter, or empty, where it ends."""
        found: bytes = await self._commands.execute(
            "GETRANGE", _content(tenant, file_id), begin, begin + num_bytes - 1
        )
        return found

    async def num_content_bytes(self, tenant: str, file_id: str) -> int:
        """The length of content; 0 when there is none."""
        return int(await self._commands.execute("STRLEN", _content(tenant, file_id)))

    async def add_file(self, tenant: str, file_id: str, shown: bytes, num_bytes: int) -> None:
        """Make a file of content. Raises LimitExceeded when the tenant has too much."""
        reply = await self._run("file_add", tenant, file_id, shown, num_bytes)
        self._refuse(reply.decode())

    async def show_file(self, tenant: str, file_id: str, shown: bytes) -> None:
        """Let clients see a file that a batch has written."""
        await self._commands.execute("HSET", f"{_root(tenant)}:files", file_id, shown)

    async def files(self, tenant: str) -> list[bytes]:
        """All files of a tenant as clients see them, as JSON, in no order."""
        found: list[bytes] = await self._commands.execute("HVALS", f"{_root(tenant)}:files")
        return found

    async def file(self, tenant: str, file_id: str) -> bytes:
        """A file as a client sees it, as JSON. Raises InvalidRequest when there is none."""
        found: bytes | None = await self._commands.execute(
            "HGET", f"{_root(tenant)}:files", file_id
        )
        if found is None:
            raise _not_found("file", file_id)
        return found

    async def delete_file(self, tenant: str, file_id: str) -> None:
        """Delete a file. Raises InvalidRequest when there is none."""
        if not await self._run("file_delete", tenant, file_id):
            raise _not_found("file", file_id)

    async def add_batch(self, key: BatchKey, fields: Mapping[str, str]) -> None:
        """Create a batch, and let gateways take it. Raises LimitExceeded."""
        # In the list first, and free a little later: a batch that no gateway finds would be lost.
        soon_s = self._clock.unix() + _GRACE_S
        await self._commands.execute("ZADD", _OPEN_ROOT, repr(soon_s), key.member)
        try:
            reply = await self._run("batch_add", key.tenant, key.batch_id, *_flat(fields))
            self._refuse(reply.decode())
        except LimitExceeded:
            await self.close_batch(key)
            raise
        await self._commands.execute("ZADD", _OPEN_ROOT, repr(self._clock.unix()), key.member)

    async def batch_ids(self, tenant: str) -> list[str]:
        """The batches of a tenant, in the order of their creation."""
        found = await self._commands.execute("ZRANGE", f"{_root(tenant)}:batches", 0, -1)
        return [name.decode() for name in found]

    async def batch(self, key: BatchKey) -> dict[str, str]:
        """The fields of a batch. Raises InvalidRequest when there is none."""
        if not _BATCH_ID.fullmatch(key.batch_id):
            raise _not_found("batch", key.batch_id)
        record = f"{_root(key.tenant)}:{key.batch_id}"
        found: dict[bytes, bytes] = await self._commands.execute("HGETALL", record)
        if not found:
            raise _not_found("batch", key.batch_id)
        return {name.decode(): value.decode() for name, value in found.items()}

    async def step(self, key: BatchKey, allowed: Sequence[str], fields: Mapping[str, str]) -> str:
        """Change a batch that has one of these statuses. Returns the status that stood against it,
        `gone` without a batch; empty when done."""
        statuses = f",{','.join(allowed)},"
        reply: bytes = await self._run(
            "batch_step", key.tenant, key.batch_id, statuses, *_flat(fields)
        )
        return reply.decode()

    async def add_line(self, key: BatchKey, file_id: str, result: LineResult) -> None:
        """Write the answer to a line at the end of a file, unless the line has one or the batch has
        come to its end."""
        count = "failed" if result.is_failed else "completed"
        counts = [part for pair in result.counts.items() for part in pair]
        arguments = (result.number, file_id, result.text, count, *counts)
        await self._run("batch_line", key.tenant, key.batch_id, *arguments)

    async def lines_done(self, key: BatchKey) -> bytes:
        """A bit for each line that has its answer, as Redis has them: the first is the highest."""
        name = f"{_root(key.tenant)}:{key.batch_id}:done"
        return await self._commands.execute("GET", name) or b""

    async def free_batches(self) -> list[BatchKey]:
        """The open batches that no gateway works on, those that have waited longest first."""
        now = repr(self._clock.unix())
        found = await self._commands.execute(
            "ZRANGEBYSCORE", _OPEN_ROOT, "-inf", now, "LIMIT", 0, _MAX_FREE
        )
        names = (member.decode().partition(" ") for member in found)
        return [BatchKey(tenant, batch_id) for batch_id, _, tenant in names]

    async def lease(self, key: BatchKey, gateway_id: str, for_s: float) -> str:
        """Take or renew the lease of an open batch; with 0 s give it back. Returns `gone` when the
        batch is not open, `held` when another gateway has the lease; empty when done."""
        now_s = self._clock.unix()
        arguments = (key.member, gateway_id, repr(now_s), repr(now_s + for_s))
        reply: bytes = await self._commands.run_script("lease", _OPEN_ROOT, arguments)
        return reply.decode()

    async def close_batch(self, key: BatchKey) -> None:
        """Take a batch that has ended from the open ones."""
        await self._commands.execute("ZREM", _OPEN_ROOT, key.member)
        await self._commands.execute("HDEL", f"{_OPEN_ROOT}:holders", key.member)

    async def _run(self, name: str, tenant: str, object_id: str, *more: Argument) -> Any:
        arguments = (
            object_id,
            repr(self._clock.unix()),
            int(self._store.limits.ttl_s),
            self.limits.max_bytes_of_tenant,
            self.limits.max_objects_of_tenant,
            *more,
        )
        return await self._commands.run_script(name, _root(tenant), arguments)

    def _refuse(self, reply: str) -> None:
        if reply == "gone":
            raise InvalidRequest("the file did not arrive as a whole", param="file")
        if reply:
            limits = self.limits
            raise LimitExceeded(
                f"files and batches of a tenant: {limits.max_bytes_of_tenant} bytes and "
                f"{limits.max_objects_of_tenant} of both; delete some",
                reason="share_exceeded",
            )


def _not_found(kind: str, name: str) -> InvalidRequest:
    return InvalidRequest(f"there is no {kind} {quoted(name)}", reason="not_found")


def _flat(fields: Mapping[str, str]) -> list[str]:
    return [part for pair in fields.items() for part in pair]


def _root(tenant: str) -> str:
    """The prefix of a tenant's keys, all of which are in one hash slot."""
    return f"baton:batches:{{{tenant}}}"


def _content(tenant: str, file_id: str) -> str:
    return f"{_root(tenant)}:{file_id}:content"

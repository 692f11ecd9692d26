"""The store of one gateway's fleet: responses, their events, and conversations, in Redis.

Every key begins with the name of its tenant, so that no tenant reads another's. An object lives for
`ttl_s` after its last change. A tenant that has too many bytes or objects loses its oldest ones.
Values are JSON as clients see it; this module does not look into it.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal, Protocol

from baton.system.clock import Clock
from baton.wire.failures import InvalidRequest, Unavailable

Argument = str | bytes | int | float
Fields = Mapping[str, str | bytes]
SCRIPT_NAMES = ("append", "delete", "remove", "write")
# Replies of scripts besides the status of a response.
GONE = "gone"
TOO_LARGE = "too_large"
_EVENTS_PER_READ = 100
LOOK_AT_MEMORY_S = 5.0
MAX_USED_SHARE = 0.8
# The names of objects, which clients may write: beside them are keys of other kinds.
_OBJECT_ID = re.compile(r"(?:resp|conv|key)_[0-9a-z_]+")
# A gateway that says nothing of a running response for so long has died.
ALIVE_S = 15


class Commands(Protocol):
    """A Redis server. Every method raises Unavailable when it does not answer."""

    async def run_script(self, name: str, root: str, arguments: Sequence[Argument]) -> Any:
        """Run one of SCRIPT_NAMES, atomically, on the keys below `root`."""

    async def execute(self, *command: Argument) -> Any:
        """Run one command; replies are bytes, integers or lists of them."""

    async def used_share(self) -> float:
        """The part of its memory that the server uses, that of the fullest one; 0 = no limit."""

    async def close(self) -> None:
        """Close the connections."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The bounds of files and batches."""

    max_file_bytes: int = 16 * 1024 * 1024
    max_lines: int = 50_000
    max_bytes_of_tenant: int = 64 * 1024 * 1024
    max_objects_of_tenant: int = 1000
    # Of one batch.
    num_lines_at_once: int = 8
    # Of one line: thousands of vectors are more than a file has room for.
    max_answer_bytes: int = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """The bounds of what is kept."""

    ttl_s: float = 30 * 86_400.0
    max_bytes_of_tenant: int = 64 * 1024 * 1024
    max_objects_of_tenant: int = 10_000
    max_object_bytes: int = 2 * 1024 * 1024
    # Tenants of which nothing is kept.
    excluded_tenants: tuple[str, ...] = ()
    batches: BatchLimits = BatchLimits()


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events of one response that follow each other, as text, and the number of the last one."""

    last_number: int
    text: bytes


def script_text(name: str) -> str:
    """A whole script, with the part that all have in common."""
    folder = resources.files("services.gateway.stored") / "lua"
    return "\n".join((folder / f"{part}.lua").read_text() for part in ("shared", name))


class Store:
    """Everything that is kept, of all tenants. Every method may raise Unavailable."""

    def __init__(
        self, commands: Commands, limits: StoreLimits, clock: Clock, kind: str = "stored"
    ) -> None:
        """`kind`: a part of every key; stores of different kinds share a server, and no bounds."""
        self.commands = commands
        self.limits = limits
        self.clock = clock
        self._kind = kind
        self._looked_s = -math.inf
        self._used_share = 0.0

    async def close(self) -> None:
        """Close the connections to Redis."""
        await self.commands.close()

    @property
    def max_object_bytes(self) -> int:
        return self.limits.max_object_bytes

    def keeps(self, tenant: str) -> bool:
        """True unless the operator keeps nothing of this tenant."""
        return tenant not in self.limits.excluded_tenants

    async def read(self, tenant: str, object_id: str, *names: str) -> list[bytes | None]:
        """Fields of an object; None for each that it does not have, or when it is not there."""
        if not _OBJECT_ID.fullmatch(object_id):
            return [None] * len(names)
        found: list[bytes | None] = await self.commands.execute(
            "HMGET", f"{self._root(tenant)}:{object_id}", *names
        )
        return found

    async def write(
        self,
        tenant: str,
        object_id: str,
        fields: Fields,
        condition: Literal["any", "open", "dead"] = "any",
    ) -> str:
        """Create or change an object. Returns the status that stood against it; empty when done.

        `open`: only a response that has not ended; `dead`: and whose gateway has died.
        """
        if condition == "any":
            await self.check_room()
        pairs = [part for pair in fields.items() for part in pair]
        reply: bytes = await self._run("write", tenant, object_id, condition, 0, "", "", *pairs)
        return reply.decode()

    async def status_if_alive(self, tenant: str, response_id: str) -> str:
        """The status of a response, GONE when it is not there; empty when it has not ended, and its
        gateway has died. Reads no more than that, however large the response is."""
        return await self.write(tenant, response_id, {}, "dead")

    async def go_on(
        self,
        tenant: str,
        response_id: str,
        fields: Fields,
        events: EventBatch | None = None,
        condition: Literal["any", "new", "open", "same"] = "open",
    ) -> str:
        """Change an object that runs, add events of it, and say that its gateway is alive. `any`
        begins it; `new`: unless it has ended, or runs at a gateway that is alive; `same`: it has
        these fields already, or else it is GONE. Returns what `write` does."""
        if condition in ("any", "new"):
            await self.check_room()
        pairs = [part for pair in fields.items() for part in pair]
        event = ("", "") if events is None else (f"{events.last_number + 1}-0", events.text)
        reply: bytes = await self._run(
            "write", tenant, response_id, condition, ALIVE_S, *event, *pairs
        )
        return reply.decode()

    async def delete(self, tenant: str, object_id: str, fields: Fields | None = None) -> bool:
        """Delete an object and all that belongs to it; False when it is not there, or does not have
        these fields."""
        pairs = [part for pair in (fields or {}).items() for part in pair]
        return bool(await self._run("delete", tenant, object_id, *pairs))

    async def events_after(self, tenant: str, response_id: str, number: int) -> list[EventBatch]:
        """The next batches that have an event behind this number; empty when there is none yet."""
        found = await self.commands.execute(
            "XRANGE",
            f"{self._root(tenant)}:{response_id}:events",
            f"{number + 2}-0",
            "+",
            "COUNT",
            _EVENTS_PER_READ,
        )
        return [EventBatch(int(key.split(b"-")[0]) - 1, fields[b"events"]) for key, fields in found]

    async def append_items(self, tenant: str, conversation_id: str, items: list[bytes]) -> str:
        """Add items to a conversation. Returns what `write` does."""
        await self.check_room()
        reply: bytes = await self._run("append", tenant, conversation_id, *items)
        return reply.decode()

    async def items(self, tenant: str, conversation_id: str) -> list[bytes]:
        """All items of a conversation, in order."""
        key = f"{self._root(tenant)}:{conversation_id}:items"
        found: list[bytes] = await self.commands.execute("LRANGE", key, 0, -1)
        return found

    async def remove_item(self, tenant: str, conversation_id: str, item: bytes) -> bool:
        """Remove an item; False when it is not there."""
        return bool(await self._run("remove", tenant, conversation_id, item))

    async def check_room(self) -> None:
        """Refuse what is new while the server is nearly full: it may hold the ledger, too."""
        if self.clock.now() - self._looked_s >= LOOK_AT_MEMORY_S:
            self._looked_s = self.clock.now()
            self._used_share = await self.commands.used_share()
        if self._used_share > MAX_USED_SHARE:
            raise Unavailable("the store is full", reason="store_unavailable", retry_after_s=10)

    async def _run(self, name: str, tenant: str, object_id: str, *more: Argument) -> Any:
        limits = self.limits
        arguments = (
            object_id,
            repr(self.clock.unix()),
            int(limits.ttl_s),
            limits.max_bytes_of_tenant,
            limits.max_objects_of_tenant,
            limits.max_object_bytes,
            *more,
        )
        return await self.commands.run_script(name, self._root(tenant), arguments)

    def _root(self, tenant: str) -> str:
        """The prefix of a tenant's keys, all of which are in one hash slot."""
        return f"baton:{self._kind}:{{{tenant}}}"


def too_large(what: str) -> InvalidRequest:
    """The refusal of an object that is larger than one may be."""
    return InvalidRequest(f"{what} is larger than this server keeps", reason="body_too_large")

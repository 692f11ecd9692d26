"""The room of one gateway: the places of open requests, rooms in memory by bytes, and the line of
large bodies.

Rooms are bounded in all, and by a share for each tenant; what does not fit waits in line, for a
bounded time. A body takes its room before its first byte is read, and keeps it until it is parsed;
a list of prompts whose answer is vectors, until those are sent. A body of 8 MB can be made that
takes two seconds to parse: so large ones are parsed in another process, one at a time, and tenants
take turns.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from baton.wire.failures import BatonError, LimitExceeded, Overloaded
from services.gateway.clients.protocols import BodyParser
from services.gateway.openai.generation import EndpointName, GenerationRequest

# Parsing the worst body of this size takes 10 ms.
LARGE_BODY_BYTES = 32 * 1024
# Of what does not fit. Its client's socket holds a body meanwhile, but for about 64 KiB.
WAIT_S = 5.0
MAX_WAITING = 256
MAX_WAITING_OF_TENANT = 64


class OpenRequests:
    """The open requests of each tenant. `num_places`: for all tenants; `share`: those that each may
    have.

    A limit on a key's open requests is its owner's choice, and holds for all gateways together.
    This bound is the gateway's own: one tenant cannot take all of its places. Beyond its share it
    may take places as long as a share stays free for others.
    """

    def __init__(self, num_places: int, share: int) -> None:
        self._share = share
        self._num_free = num_places
        self._num_open: Counter[str] = Counter()

    @contextmanager
    def one_of(self, tenant: str) -> Iterator[None]:
        """Count a request of a tenant as open. Raises LimitExceeded when too many are."""
        num_own = self._num_open[tenant]
        if num_own >= self._share and self._num_free <= self._share:
            message = f"{num_own} requests of this tenant are open, and the others' share is left"
            raise LimitExceeded(message, reason="share_exceeded", retry_after_s=1)
        self._num_free -= 1
        self._num_open[tenant] += 1
        try:
            yield
        finally:
            self._num_free += 1
            self._num_open[tenant] -= 1
            if not self._num_open[tenant]:
                del self._num_open[tenant]


@dataclass(frozen=True, slots=True)
class ByteLimits:
    """The bytes that may be held at once: in all, and of one tenant."""

    num_bytes: int = 64 * 1024 * 1024
    num_bytes_of_tenant: int = 16 * 1024 * 1024


@dataclass(slots=True, eq=False)
class _Waiter:
    tenant: str
    num_bytes: int
    admitted: asyncio.Future[None] = field(default_factory=asyncio.Future)


class Room:
    """The room of one request."""

    def __init__(self, rooms: "ByteRooms", tenant: str, num_bytes: int) -> None:
        self._rooms = rooms
        self._tenant = tenant
        self.num_bytes = num_bytes

    def need(self, num_bytes: int) -> None:
        """Take more room, for a body whose length was not told. Never waits: bodies that wait for
        each other's room would all stand still. Raises LimitExceeded, Overloaded."""
        more = num_bytes - self.num_bytes
        if more > 0:
            self._rooms.take(self._tenant, more)
            self.num_bytes = num_bytes


class ByteRooms:
    """The rooms of one gateway for one kind of requests. `what`: the kind, as a refusal says it."""

    def __init__(self, limits: ByteLimits, what: str) -> None:
        self._limits = limits
        self._what = what
        self._num_bytes = 0
        # Bytes by tenant.
        self._held: Counter[str] = Counter()
        self._line: list[_Waiter] = []

    @property
    def most_of_tenant(self) -> int:
        """The bytes that one tenant may hold, and so one request."""
        return self._limits.num_bytes_of_tenant

    @asynccontextmanager
    async def room(self, tenant: str, num_bytes: int) -> AsyncIterator[Room]:
        """Hold room for so many bytes, and wait for it. Raises LimitExceeded when it is the tenant
        that has too many, else Overloaded."""
        await self._enter(tenant, num_bytes)
        room = Room(self, tenant, num_bytes)
        try:
            yield room
        finally:
            self._leave(tenant, room.num_bytes)

    def take(self, tenant: str, num_bytes: int) -> None:
        """Take room at once. Raises LimitExceeded, Overloaded."""
        if not self._has_room(tenant, num_bytes):
            raise self._refusal(tenant, num_bytes)
        self._num_bytes += num_bytes
        self._held[tenant] += num_bytes

    async def _enter(self, tenant: str, num_bytes: int) -> None:
        if not self._line and self._has_room(tenant, num_bytes):
            self.take(tenant, num_bytes)
            return
        waiter = _Waiter(tenant, num_bytes)
        if self._is_line_full(tenant):
            raise self._refusal(tenant, num_bytes)
        self._line.append(waiter)
        self._admit()
        try:
            async with asyncio.timeout(WAIT_S):
                await waiter.admitted
        except TimeoutError:
            # It may have been admitted at this very moment.
            if waiter in self._line:
                self._give_up(waiter)
                raise self._refusal(tenant, num_bytes) from None
        except asyncio.CancelledError:
            if waiter in self._line:
                self._give_up(waiter)
            else:
                self._leave(tenant, num_bytes)
            raise

    def _give_up(self, waiter: _Waiter) -> None:
        self._line.remove(waiter)
        self._admit()

    def _admit(self) -> None:
        """Admit those in line for which there is room, in order; a tenant that has its share does
        not hold up others."""
        tenants_without: set[str] = set()
        for waiter in tuple(self._line):
            if waiter.tenant in tenants_without or waiter.admitted.done():
                continue
            if self._num_bytes + waiter.num_bytes > self._limits.num_bytes:
                return
            if not self._has_room(waiter.tenant, waiter.num_bytes):
                tenants_without.add(waiter.tenant)
                continue
            self.take(waiter.tenant, waiter.num_bytes)
            self._line.remove(waiter)
            waiter.admitted.set_result(None)

    def _leave(self, tenant: str, num_bytes: int) -> None:
        self._num_bytes -= num_bytes
        self._held[tenant] -= num_bytes
        if not self._held[tenant]:
            del self._held[tenant]
        self._admit()

    def _has_room(self, tenant: str, num_bytes: int) -> bool:
        return (
            self._num_bytes + num_bytes <= self._limits.num_bytes
            and self._held[tenant] + num_bytes <= self._limits.num_bytes_of_tenant
        )

    def _is_line_full(self, tenant: str) -> bool:
        num_waiting = sum(waiter.tenant == tenant for waiter in self._line)
        return num_waiting >= MAX_WAITING_OF_TENANT or len(self._line) >= MAX_WAITING

    def _refusal(self, tenant: str, num_bytes: int) -> BatonError:
        if self._held[tenant] + num_bytes > self._limits.num_bytes_of_tenant:
            message = f"too many {self._what} of this tenant at once"
            return LimitExceeded(message, reason="share_exceeded", retry_after_s=1)
        return Overloaded(f"too many {self._what} at once", retry_after_s=1)


class Bodies(ByteRooms):
    """The bodies of one gateway: rooms in which they are read, and the line of the large ones."""

    def __init__(self, parser: BodyParser, limits: ByteLimits) -> None:
        super().__init__(limits, "large requests")
        self._parser = parser
        self._turn = asyncio.Lock()
        # A tenant has one body in the line for the turn.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def parse(self, tenant: str, endpoint: EndpointName, body: bytes) -> GenerationRequest:
        """Parse a large body, when its turn has come. Raises BatonError."""
        async with self._turns.setdefault(tenant, asyncio.Lock()):
            await self._turn.acquire()
            parsing = asyncio.ensure_future(self._parser.parse(endpoint, body))
            parsing.add_done_callback(self._end_turn)
            # It goes on to its end, and keeps the turn, also when its client leaves.
            return await asyncio.shield(parsing)

    def _end_turn(self, parsing: asyncio.Future[GenerationRequest]) -> None:
        self._turn.release()
        if not parsing.cancelled():
            parsing.exception()  # its client may have left

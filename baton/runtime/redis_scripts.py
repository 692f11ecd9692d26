"""Lua scripts on Redis, and the exceptions with which a client of Redis fails.

The scripts of one process share a connection, on which each is sent as soon as it is called: Redis
answers in order. A connection of its own costs a call 50 calls of Python functions more, for the
pool and for a reader's task. In a cluster, and with a fake of Redis, scripts take the client's way.
"""

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha1
from typing import Any

from hiredis import Reader, pack_command
from redis._parsers import BaseParser
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.cluster import RedisCluster
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import (
    InvalidResponse,
    NoScriptError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError

# All that a call may raise when Redis fails; `is_of_redis` tells those that mean something else.
FAILURES = (RedisError, RedisClusterException, RuntimeError)
# uvloop's message when Redis closed a connection before the first write; redis-py passes it on.
_CLOSED = "the handler is closed"
# Replies of a server that is not the one to ask, or not yet: another connection may find it.
_ELSEWHERE = (RedisConnectionError, ReadOnlyError)
_INCOMPLETE = object()
# A connection's clock ticks so often in the time that a command may take.
_TICKS = 4

Execute = Callable[..., Awaitable[Any]]


def is_of_redis(error: Exception) -> bool:
    """True when Redis, or the connection to it, failed; False for a bug of ours."""
    return not isinstance(error, RuntimeError) or _CLOSED in str(error)


class RedisScripts:
    """Scripts by name, on one client (or an in-process fake of one)."""

    def __init__(self, client: Redis | RedisCluster, texts: Mapping[str, str]) -> None:
        self._shared = _shared_connection(client)
        self._execute: Execute = client.execute_command
        if self._shared is not None:
            self._execute = self._shared.execute
        self._texts = texts
        # Redis names scripts by their SHA-1.
        self._digests = {
            name: sha1(text.encode(), usedforsecurity=False).hexdigest()
            for name, text in texts.items()
        }

    async def run(self, name: str, root: str, arguments: Sequence[str | bytes | float]) -> Any:
        """Run a script on the keys below `root`; a server that does not know it gets its text.

        Raises one of FAILURES.
        """
        try:
            return await self._execute("EVALSHA", self._digests[name], 1, root, *arguments)
        except NoScriptError:
            return await self._execute("EVAL", self._texts[name], 1, root, *arguments)

    async def close(self) -> None:
        """Close the connection that the scripts share."""
        if self._shared is not None:
            await self._shared.close()


def _shared_connection(client: Redis | RedisCluster) -> "_SharedConnection | None":
    pool = client.connection_pool if isinstance(client, Redis) else None
    return _SharedConnection(pool) if isinstance(pool, BlockingConnectionPool) else None


class _SharedConnection:
    """A connection beside those of a pool, for commands of many callers, which may be repeated."""

    def __init__(self, pool: BlockingConnectionPool) -> None:
        # Knows how to connect: addresses, TLS, passwords, Sentinels.
        self._connection: Any = pool.make_connection()  # type: ignore[no-untyped-call]
        self._timeout_s: float = pool.connection_kwargs["socket_timeout"]
        self._line: _Line | None = None
        self._opening: asyncio.Task[_Line] | None = None

    async def execute(self, *command: Any) -> Any:
        """Run a command; one whose connection is lost is repeated once, over another one. Raises
        RedisError."""
        packed = pack_command(command)
        try:
            return await (await self._open_line()).send(packed)
        except RedisConnectionError:
            return await (await self._open_line()).send(packed)

    async def close(self) -> None:
        """Close the connection; calls that are open fail."""
        if self._opening is not None:
            await asyncio.wait([self._opening])
        if self._line is not None:
            self._line.lose(RedisConnectionError, "the connection was closed")
        await self._connection.disconnect()

    async def _open_line(self) -> "_Line":
        line = self._line
        if line is not None and not line.is_lost:
            return line
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._connect())
        # A caller that leaves does not take the connection from others.
        return await asyncio.shield(self._opening)

    async def _connect(self) -> "_Line":
        connection = self._connection
        await connection.disconnect()
        await connection.connect()
        self._line = _Line(connection._writer.transport, self._timeout_s)
        return self._line


class _Line(asyncio.Protocol):
    """Commands on one connection that wait for their replies, in order. Takes the place of the
    protocol that connected it."""

    def __init__(self, transport: asyncio.Transport, timeout_s: float) -> None:
        self.is_lost = False
        self._transport = transport
        self._tick_s = timeout_s / _TICKS
        self._reader = Reader(
            protocolError=InvalidResponse,
            replyError=BaseParser.parse_error,
            notEnoughData=_INCOMPLETE,
        )
        self._loop = asyncio.get_running_loop()
        # With the ticks at which they were sent.
        self._waiting: deque[tuple[Future[Any], int]] = deque()
        # One timer over all of them, as almost none is late. It runs while one waits.
        self._timer: asyncio.TimerHandle | None = None
        self._num_ticks = 0
        self._connected_by = transport.get_protocol()
        transport.set_protocol(self)

    def send(self, packed: bytes) -> Future[Any]:
        """Send a command; returns its reply. The future raises RedisError."""
        answered: Future[Any] = self._loop.create_future()
        self._waiting.append((answered, self._num_ticks))
        self._transport.write(packed)
        if self._timer is None:
            self._timer = self._loop.call_later(self._tick_s, self._tick)
        return answered

    def lose(self, kind: type[RedisError], message: str) -> None:
        """Cut the connection; all commands that wait fail."""
        self.is_lost = True
        self._transport.abort()
        waiting, self._waiting = self._waiting, deque()
        for answered, _ in waiting:
            if not answered.done():
                answered.set_exception(kind(message))

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not _INCOMPLETE:
                self._take(reply)
        except InvalidResponse as error:
            self.lose(InvalidResponse, str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self.lose(RedisConnectionError, "Redis closed the connection")
        if self._timer is not None:
            self._timer.cancel()
        self._connected_by.connection_lost(exc)

    def _take(self, reply: object) -> None:
        if isinstance(reply, _ELSEWHERE):
            self.lose(RedisConnectionError, str(reply))
        if not self._waiting:
            return
        answered, _ = self._waiting.popleft()
        if answered.done():
            return  # its caller has left
        if isinstance(reply, RedisError):
            answered.set_exception(reply)
        else:
            answered.set_result(reply)

    def _tick(self) -> None:
        """Lose the connection if its first command has waited for too long."""
        self._timer = None
        self._num_ticks += 1
        if not self._waiting:
            return
        if self._num_ticks - self._waiting[0][1] > _TICKS:
            self.lose(RedisTimeoutError, "Timeout reading from Redis")
        else:
            self._timer = self._loop.call_later(self._tick_s, self._tick)

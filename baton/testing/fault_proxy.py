"""A TCP proxy that injects faults: delay, hold, drop, throttle, corrupt, cut, refuse.

Faults are switched while it runs, per direction, and apply to every connection. It runs in a thread
with a loop of its own, so that neither a test that blocks nor a busy event loop slows it; every
method is a plain call that returns within a turn of that loop. It knows bytes only: no TLS, HTTP or
gRPC. `verify` fails unless each fault that was switched on really touched traffic.
"""

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, Self, TypeVar

from baton.system.clock import SystemClock
from baton.testing.faults import (
    DIRECTIONS,
    Direction,
    FaultDidNotHappen,
    Faults,
    FaultState,
    Pipe,
)

Address = tuple[str, int]
T = TypeVar("T")

TIMEOUT_S = 60.0
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Upstreams(Protocol):
    """The servers to which new connections go."""

    async def run(self) -> None:
        """Keep the list of servers up to date until cancelled."""

    def candidates(self) -> list[Address]:
        """The servers to try, in this order; with none the connection is reset."""


class OneUpstream:
    """Always the same server."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)

    async def run(self) -> None:
        await asyncio.Event().wait()

    def candidates(self) -> list[Address]:
        return [self._address]


class FaultProxy:
    """The proxy, used as a context manager; it listens at `host` and `port`.

    `counts` holds, per direction, the bytes that passed and those that each kind of fault met
    ("to_client.drop"), and "connections", "cut", "refused" and "failed_connects".
    """

    def __init__(self, upstreams: Upstreams, *, seed: int = 0, host: str = "127.0.0.1") -> None:
        self.host, self.port = host, 0
        self._upstreams = upstreams
        self._state = FaultState(random.Random(seed), SystemClock())
        self._is_refusing = False
        # The writers to both sides of each connection, by the task that carries it.
        self._open: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._serving: asyncio.Task[None] | None = None
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=self._run_thread, name="fault proxy", daemon=True)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def counts(self) -> Counter[str]:
        return self._state.counts

    @property
    def num_open(self) -> int:
        """The open connections."""
        return len(self._open)

    def set(self, *directions: Direction, **faults: float | bool) -> None:
        """Switch these Faults on, and all others off, in the given directions (none: both)."""
        new = Faults(**faults)  # type: ignore[arg-type]
        self._call(lambda: self._state.switch(directions or DIRECTIONS, new))

    def heal(self) -> None:
        """Switch all faults off. `verify` still asks for those that were on."""
        self._call(self._heal)

    def refuse(self) -> None:
        """Reset new connections until `heal`."""
        self._call(self._refuse)

    def cut(self, *, reset: bool = True) -> int:
        """End all connections now, with RST or with FIN; what is in flight is lost."""
        return self._call(lambda: self._cut(reset))

    @contextmanager
    def fault(self, *directions: Direction, **faults: float | bool) -> Iterator[None]:
        """Set faults for the body of the with statement, then `heal` and `verify`."""
        self.set(*directions, **faults)
        try:
            yield
        finally:
            self.heal()
        self.verify()

    def verify(self) -> None:
        """Check that every fault since the last successful call met traffic, in one of its
        directions at least. Raises FaultDidNotHappen."""
        if unmet := self._call(self._state.take_unmet):
            raise FaultDidNotHappen(f"no traffic met: {', '.join(unmet)}")

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._is_up.wait(TIMEOUT_S), "the proxy did not start"
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        assert self._serving is not None
        self._loop.call_soon_threadsafe(self._serving.cancel)
        self._thread.join(TIMEOUT_S)

    # Everything below runs in the proxy's thread.

    def _heal(self) -> None:
        self._is_refusing = False
        self._state.switch(DIRECTIONS, Faults())

    def _refuse(self) -> None:
        self._is_refusing = True
        self._state.aim("refused")

    def _cut(self, reset: bool) -> int:
        self._state.aim("cut")
        num_cut = len(self._open)
        self.counts["cut"] += num_cut
        for task, writers in list(self._open.items()):
            for writer in writers:
                _end(writer, reset)
            task.cancel()
        return num_cut

    def _run_thread(self) -> None:
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._serving = asyncio.current_task()
        server = await asyncio.start_server(self._accept, self.host, 0)
        self.port = server.sockets[0].getsockname()[1]
        self._is_up.set()
        try:
            async with server:
                await self._upstreams.run()
        except asyncio.CancelledError:
            await self._end_all()

    async def _end_all(self) -> None:
        """End all connections: no task of theirs may outlive the loop.

        The writers come first: cancelling a task that waits for one to close would cancel the
        future of `wait_closed`, which everything else that waits for it shares.
        """
        tasks, writers = list(self._open), [w for pair in self._open.values() for w in pair]
        for writer in writers:
            _end(writer, reset=True)
        for writer in writers:
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection, from accepting it to the end of both directions."""
        task = asyncio.current_task()
        assert task is not None
        writers = [writer]
        try:
            if self._is_refusing:
                self.counts["refused"] += 1
            elif upstream := await self._connect():
                from_server, to_server = upstream
                writers.append(to_server)
                self._open[task] = writers
                self.counts["connections"] += 1
                await self._carry(reader, to_server, from_server, writer)
        except asyncio.CancelledError:
            # By `cut` or at the end. This is the task's root, and asyncio.streams logs as an error
            # what a cancelled one lets out.
            pass
        finally:
            for each in writers:
                _end(each, reset=task not in self._open)
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                for each in writers:
                    await each.wait_closed()
            self._open.pop(task, None)

    async def _carry(
        self,
        from_client: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
        from_server: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
    ) -> None:
        there, back = Pipe(self._state, "to_server"), Pipe(self._state, "to_client")
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(there.read_all(from_client))
                tasks.create_task(there.write_all(to_server))
                tasks.create_task(back.read_all(from_server))
                tasks.create_task(back.write_all(to_client))
        except* OSError:
            # One side is gone, and with it the connection.
            for writer in (to_server, to_client):
                _end(writer, reset=True)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for host, port in self._upstreams.candidates():
            try:
                return await asyncio.open_connection(host, port)
            except OSError:
                self.counts["failed_connects"] += 1
        return None

    def _call(self, function: Callable[[], T]) -> T:
        """Run a call in the proxy's thread, and wait for the result."""

        async def call() -> T:
            return function()

        assert self._loop is not None, "the proxy is not running"
        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(TIMEOUT_S)


def _end(writer: asyncio.StreamWriter, reset: bool) -> None:
    """Close with FIN, or with RST, which drops the bytes still to be sent."""
    raw = writer.get_extra_info("socket")
    if reset and raw.fileno() >= 0:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        writer.transport.abort()
    else:
        writer.close()

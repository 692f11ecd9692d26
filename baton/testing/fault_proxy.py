"""A TCP proxy that hurts what goes through it: delay, hold, drop, throttle, corrupt, cut, refuse.

Faults are switched while it runs, per direction, and apply to every connection. It runs in a thread
with a loop of its own, so that neither a test that blocks nor a busy event loop slows it; every
method is a plain call that returns within a turn of that loop. It knows bytes only: no TLS, HTTP or
gRPC. `verify` fails unless each fault that was switched on really touched traffic.
"""

import asyncio
import contextlib
import dataclasses
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, Protocol, Self, TypeVar

Direction = Literal["to_server", "to_client"]
DIRECTIONS: tuple[Direction, Direction] = ("to_server", "to_client")
Address = tuple[str, int]
T = TypeVar("T")

READ_BYTES = 64 << 10
# On their way in one direction of one connection; with more, the sender waits.
MAX_CHUNKS = 64
TIMEOUT_S = 10.0
# A throttled direction passes so much time's bytes at once.
_SLICE_S = 0.02
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class FaultDidNotHappen(AssertionError):
    """A fault was aimed and nothing met it: the test proved nothing."""


@dataclasses.dataclass(frozen=True)
class Faults:
    """What happens to the bytes of one direction.

    `delay_s`: each byte arrives so much later. `hold`: nothing passes until it is switched off, and
    then everything does (a partition that heals). `drop`: bytes are swallowed, and the connections
    that lost some stay dead and open for good (half-open). `bytes_per_s`: at most so many (0: any).
    `corrupt_offset`: one bit of that byte is flipped, counted in each connection from the moment
    of switching on (-1: none). `corrupt_probability`: one bit of a chunk in so many. Both leave
    chunks under `corrupt_min_bytes` alone: with some kilobytes they hit payload, not framing.
    """

    delay_s: float = 0.0
    hold: bool = False
    drop: bool = False
    bytes_per_s: float = 0.0
    corrupt_offset: int = -1
    corrupt_probability: float = 0.0
    corrupt_min_bytes: int = 1

    def kinds(self) -> set[str]:
        """The names under which it is counted."""
        return {
            name
            for name, is_on in (
                ("delay", self.delay_s > 0),
                ("hold", self.hold),
                ("drop", self.drop),
                ("throttle", self.bytes_per_s > 0),
                ("corrupt", self.corrupt_offset >= 0 or self.corrupt_probability > 0),
            )
            if is_on
        }


class Upstreams(Protocol):
    """Where new connections go."""

    async def run(self) -> None:
        """Keep up to date until cancelled."""

    def candidates(self) -> list[Address]:
        """The servers to try, in this order; empty: the connection is reset."""


class OneUpstream:
    """Always the same server."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)

    async def run(self) -> None:
        await asyncio.Event().wait()

    def candidates(self) -> list[Address]:
        return [self._address]


class FaultState:
    """What is switched on, what it met, and what a test must still see met."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.faults: dict[Direction, Faults] = dict.fromkeys(DIRECTIONS, Faults())
        self.counts: Counter[str] = Counter()
        # Counters of which one must grow, and their sum when the fault was switched on.
        self._aimed: dict[tuple[str, ...], int] = {}
        self._changed = asyncio.Event()

    def switch(self, directions: tuple[Direction, ...], faults: Faults) -> None:
        for direction in directions:
            self.faults[direction] = faults
        for kind in faults.kinds():
            self.aim(*(f"{direction}.{kind}" for direction in directions))
        self._changed.set()
        self._changed = asyncio.Event()

    def aim(self, *names: str) -> None:
        """From now on one of these must be met."""
        self._aimed.setdefault(names, self._sum(names))

    def take_unmet(self) -> list[str]:
        """Forgets the aims when all were met."""
        unmet = [names for names, before in self._aimed.items() if self._sum(names) <= before]
        if not unmet:
            self._aimed.clear()
        return sorted(" or ".join(names) for names in unmet)

    def _sum(self, names: tuple[str, ...]) -> int:
        return sum(self.counts[name] for name in names)

    async def until_released(self, direction: Direction) -> None:
        while self.faults[direction].hold:
            await self._changed.wait()


class _Pipe:
    """One direction of one connection: reads, keeps in order, hurts, writes."""

    def __init__(self, state: FaultState, name: Direction) -> None:
        self._state = state
        self._name = name
        self._chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MAX_CHUNKS)
        self._is_dead = False
        # What the corrupt offset counts in: bytes since these faults were switched on.
        self._counted_for: Faults | None = None
        self._num_counted = 0

    async def read_all(self, reader: asyncio.StreamReader) -> None:
        """Until the end of the stream, which a dead pipe keeps to itself."""
        loop = asyncio.get_running_loop()
        data = b"first"
        while data:
            try:
                data = await reader.read(READ_BYTES)
            except ConnectionError:
                if not self._swallows(b""):
                    raise
                return
            if not self._swallows(data):
                faults = self._state.faults[self._name]
                await self._chunks.put((loop.time() + faults.delay_s, self._hurt(data, faults)))

    async def write_all(self, writer: asyncio.StreamWriter) -> None:
        """Until the end of the stream is passed on."""
        loop = asyncio.get_running_loop()
        while True:
            due_s, data = await self._chunks.get()
            if (wait_s := due_s - loop.time()) > 0:
                self._count("delay", len(data))
                await asyncio.sleep(wait_s)
            if self._state.faults[self._name].hold:
                self._count("hold", len(data))
                await self._state.until_released(self._name)
            if not data:
                writer.write_eof()
                return
            await self._write(writer, data)
            self._count("bytes", len(data))

    async def _write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        rest = memoryview(data)
        while rest and (rate := self._state.faults[self._name].bytes_per_s):
            piece = rest[: max(1, int(rate * _SLICE_S))]
            self._count("throttle", len(piece))
            await asyncio.sleep(len(piece) / rate)
            writer.write(piece)
            await writer.drain()
            rest = rest[len(piece) :]
        writer.write(rest)
        await writer.drain()

    def _swallows(self, data: bytes) -> bool:
        self._is_dead |= self._state.faults[self._name].drop
        if self._is_dead:
            self._count("drop", len(data))
        return self._is_dead

    def _hurt(self, data: bytes, faults: Faults) -> bytes:
        if self._counted_for is not faults:
            self._counted_for, self._num_counted = faults, 0
        if "corrupt" not in faults.kinds() or len(data) < max(1, faults.corrupt_min_bytes):
            return data
        rng, offset = self._state.rng, faults.corrupt_offset - self._num_counted
        self._num_counted += len(data)
        if not 0 <= offset < len(data):
            if rng.random() >= faults.corrupt_probability:
                return data
            offset = rng.randrange(len(data))
        self._count("corrupt", 1)
        flipped = data[offset] ^ (1 << rng.randrange(8))
        return data[:offset] + bytes([flipped]) + data[offset + 1 :]

    def _count(self, kind: str, number: int) -> None:
        self._state.counts[f"{self._name}.{kind}"] += number


class FaultProxy:
    """Use as a context manager; `host` and `port` are where it listens.

    `counts` holds, per direction, the bytes that passed and those that each kind of fault met
    ("to_client.drop"), and "connections", "cut", "refused" and "failed_connects".
    """

    def __init__(self, upstreams: Upstreams, *, seed: int = 0, host: str = "127.0.0.1") -> None:
        self.host, self.port = host, 0
        self._upstreams = upstreams
        self._state = FaultState(random.Random(seed))
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
        """Connections that it carries now."""
        return len(self._open)

    def set(self, *directions: Direction, **faults: float | bool) -> None:
        """Switch these Faults on, and all others off, in the given directions (none: both)."""
        new = Faults(**faults)  # type: ignore[arg-type]
        self._call(lambda: self._state.switch(directions or DIRECTIONS, new))

    def heal(self) -> None:
        """Switch everything off. What `verify` asks for stays."""
        self._call(self._heal)

    def refuse(self) -> None:
        """New connections are reset until `heal`."""
        self._call(self._refuse)

    def cut(self, *, reset: bool = True) -> int:
        """End all connections now, with RST or with FIN; what is in flight is lost."""
        return self._call(lambda: self._cut(reset))

    @contextmanager
    def fault(self, *directions: Direction, **faults: float | bool) -> Iterator[None]:
        """`set` for the body, then `heal` and `verify`."""
        self.set(*directions, **faults)
        try:
            yield
        finally:
            self.heal()
        self.verify()

    def verify(self) -> None:
        """Raises FaultDidNotHappen unless every fault since the last good call met traffic, in one
        of its directions at least."""
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
        """Nothing of a connection may outlive the loop."""
        tasks, writers = list(self._open), [w for pair in self._open.values() for w in pair]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in writers:
            _end(writer, True)
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, from accepting it to the end of both directions."""
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
        there, back = _Pipe(self._state, "to_server"), _Pipe(self._state, "to_client")
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(there.read_all(from_client))
                tasks.create_task(there.write_all(to_server))
                tasks.create_task(back.read_all(from_server))
                tasks.create_task(back.write_all(to_client))
        except* OSError:
            # One side is gone; so is the connection.
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
        """Run in the proxy's thread, and wait for the result."""

        async def call() -> T:
            return function()

        assert self._loop is not None, "the proxy is not running"
        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(TIMEOUT_S)


def _end(writer: asyncio.StreamWriter, reset: bool) -> None:
    """Close with FIN, or with RST, which gives up what is still to be sent."""
    raw = writer.get_extra_info("socket")
    if reset and raw.fileno() >= 0:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        writer.transport.abort()
    else:
        writer.close()

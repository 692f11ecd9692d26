"""Faults on the bytes of one direction of a proxy, and counts of the bytes that they met."""

import asyncio
import dataclasses
import random
from collections import Counter
from typing import Literal

from baton.system.clock import Clock

Direction = Literal["to_server", "to_client"]
DIRECTIONS: tuple[Direction, Direction] = ("to_server", "to_client")

READ_BYTES = 64 << 10
# Chunks on their way in one direction of one connection; with more, the sender waits.
MAX_CHUNKS = 64
# A throttled direction passes the bytes of this time at once.
_SLICE_S = 0.02


class FaultDidNotHappen(AssertionError):
    """A fault was aimed and nothing met it: the test proved nothing."""


@dataclasses.dataclass(frozen=True)
class Faults:
    """The faults on the bytes of one direction.

    `delay_s`: each byte arrives this much later. `hold`: nothing passes until it is switched off,
    and then everything does (a partition that heals). `drop`: bytes are swallowed, and the
    connections that lost some stay dead and open for good (half-open). `bytes_per_s`: an upper
    limit (0: none). `corrupt_offset`: one bit of that byte is flipped, counted in each connection
    from the moment of switching on. `corrupt_probability`: one bit of a chunk, with this
    probability. Both leave chunks under `corrupt_min_bytes` alone: with some kilobytes they hit
    payload, not framing.
    """

    delay_s: float = 0.0
    hold: bool = False
    drop: bool = False
    bytes_per_s: float = 0.0
    corrupt_offset: int | None = None
    corrupt_probability: float = 0.0
    corrupt_min_bytes: int = 1

    def kinds(self) -> set[str]:
        """The names under which the active faults are counted."""
        return {
            name
            for name, is_on in (
                ("delay", self.delay_s > 0),
                ("hold", self.hold),
                ("drop", self.drop),
                ("throttle", self.bytes_per_s > 0),
                ("corrupt", self.corrupt_offset is not None or self.corrupt_probability > 0),
            )
            if is_on
        }


class FaultState:
    """The active faults, counts of what they met, and the faults that must still meet traffic."""

    def __init__(self, rng: random.Random, clock: Clock) -> None:
        self.rng = rng
        self.clock = clock
        self.faults: dict[Direction, Faults] = dict.fromkeys(DIRECTIONS, Faults())
        self.counts: Counter[str] = Counter()
        # Groups of counters, one of which must grow, and their sum when the fault was switched on.
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
        """Require that one of these counters grows from now on."""
        self._aimed.setdefault(names, self._sum(names))

    def take_unmet(self) -> list[str]:
        """The faults that met nothing yet; drops all requirements when there are none."""
        unmet = [names for names, before in self._aimed.items() if self._sum(names) <= before]
        if not unmet:
            self._aimed.clear()
        return sorted(" or ".join(names) for names in unmet)

    def _sum(self, names: tuple[str, ...]) -> int:
        return sum(self.counts[name] for name in names)

    async def until_released(self, direction: Direction) -> None:
        while self.faults[direction].hold:
            await self._changed.wait()


class Pipe:
    """One direction of one connection: reads, keeps the order, applies faults, writes."""

    def __init__(self, state: FaultState, name: Direction) -> None:
        self._state = state
        self._name = name
        self._chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MAX_CHUNKS)
        self._is_dead = False
        # The corrupt offset counts bytes since these faults were switched on.
        self._counted_for: Faults | None = None
        self._num_counted = 0

    async def read_all(self, reader: asyncio.StreamReader) -> None:
        """Read until the end of the stream, which a dead pipe does not pass on."""
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
                due_s = self._state.clock.now() + faults.delay_s
                await self._chunks.put((due_s, self._hurt(data, faults)))

    async def write_all(self, writer: asyncio.StreamWriter) -> None:
        """Write until the end of the stream is passed on."""
        while True:
            due_s, data = await self._chunks.get()
            if (wait_s := due_s - self._state.clock.now()) > 0:
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
        rng, start = self._state.rng, self._num_counted
        self._num_counted += len(data)
        wanted = faults.corrupt_offset
        if wanted is not None and start <= wanted < self._num_counted:
            offset = wanted - start
        elif rng.random() < faults.corrupt_probability:
            offset = rng.randrange(len(data))
        else:
            return data
        self._count("corrupt", 1)
        flipped = data[offset] ^ (1 << rng.randrange(8))
        return data[:offset] + bytes([flipped]) + data[offset + 1 :]

    def _count(self, kind: str, number: int) -> None:
        self._state.counts[f"{self._name}.{kind}"] += number

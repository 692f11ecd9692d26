"""A network in memory on virtual time: latency, cuts, and processes that stand still.

Frames of one stream arrive in order, each after a random delay, so that frames of different streams
overtake each other as they do between real processes. Everything is drawn from one seed, and every
delivery goes into a digest: the same seed must give the same digest. Knows no gRPC: a stream that
carries nothing because one end stands still is cut after KEEPALIVE_S, as keepalive does there.
"""

import asyncio
import hashlib
import random
import struct
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from baton.runtime.shared_stream import WRITE_TIMEOUT_S, StreamLost
from baton.system.clock import Clock

KEEPALIVE_S = 3.0
MAX_FRAMES = 64


class Digest:
    """A digest of all events, in the order in which they happened."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self.num_events = 0

    def add(self, name: str, at_s: float, data: bytes) -> None:
        self.num_events += 1
        self._hash.update(struct.pack("<dI", at_s, len(data)) + name.encode() + data)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


class _Wire:
    """One direction of a link: frames with their times of arrival."""

    def __init__(self) -> None:
        self.frames: deque[tuple[float, Any]] = deque()
        self.last_due_s = 0.0
        self.ended = False
        self._changed = asyncio.Event()

    def notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def change(self, timeout_s: float | None = None) -> None:
        """Wait for a change, `timeout_s` at most."""
        if timeout_s is None:
            await self._changed.wait()
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            pass


class Link:
    """One connection, which `caller` dialled to `callee`; `kind` names its protocol."""

    def __init__(self, caller: str, callee: str, kind: str) -> None:
        self.caller, self.callee, self.kind = caller, callee, kind
        self.there, self.back = _Wire(), _Wire()
        # The callee's handler: gRPC cancels it when the connection breaks.
        self.handler: asyncio.Task[None] | None = None

    @property
    def wires(self) -> tuple[_Wire, _Wire]:
        return self.there, self.back

    @property
    def is_open(self) -> bool:
        return not (self.there.ended and self.back.ended)

    def cut(self) -> None:
        """End both directions now; frames in flight are lost."""
        for wire in self.wires:
            wire.frames.clear()
            wire.ended = True
            wire.notify()
        if self.handler is not None:
            self.handler.cancel()


class VirtualStream:
    """One end of `link`; a FrameStream."""

    def __init__(self, network: "VirtualNetwork", link: Link, incoming: _Wire, out: _Wire) -> None:
        self.link = link
        self._network = network
        self._incoming = incoming
        self._out = out

    async def read(self) -> Any:
        wire, network, clock = self._incoming, self._network, self._network.clock
        while True:
            if wire.frames and not network.stands_still(self.link):
                due_s, frame = wire.frames[0]
                if (wait_s := due_s - clock.now()) <= 0:
                    wire.frames.popleft()
                    wire.notify()
                    network.delivered(self.link, wire is self.link.there, frame)
                    return frame
                await wire.change(wait_s)
            elif wire.ended and not wire.frames:
                return None
            else:
                await wire.change()

    async def write(self, frame: Any) -> None:
        wire, clock = self._out, self._network.clock
        deadline_s = clock.now() + WRITE_TIMEOUT_S
        while len(wire.frames) >= MAX_FRAMES and not wire.ended:
            if (left_s := deadline_s - clock.now()) <= 0:
                raise StreamLost(f"a write was blocked for {WRITE_TIMEOUT_S} s")
            await wire.change(left_s)
        if wire.ended:
            raise StreamLost("cut")
        due_s = clock.now() + self._network.draw_delay_s(self.link)
        wire.last_due_s = max(wire.last_due_s, due_s)
        wire.frames.append((wire.last_due_s, frame))
        wire.notify()

    async def close(self) -> None:
        """End the stream; frames that were written still arrive."""
        self._out.ended = True
        self._out.notify()

    def cancel(self) -> None:
        self.link.cut()


class VirtualNetwork:
    """All links of one simulated fleet, on the time of `clock`."""

    def __init__(self, rng: random.Random, clock: Clock, max_delay_s: float = 0.0) -> None:
        self.clock = clock
        self.max_delay_s = max_delay_s
        # The least delay between two processes, by their names.
        self.way_s: Callable[[str, str], float] = _no_way
        self.digest = Digest()
        self._rng = rng
        self._links: list[Link] = []
        self._stopped: set[str] = set()

    def connect(self, caller: str, callee: str, kind: str) -> tuple[VirtualStream, VirtualStream]:
        """Open a link; returns the caller's end and the callee's."""
        link = Link(caller, callee, kind)
        self._links = [old for old in self._links if old.is_open]
        self._links.append(link)
        ours = VirtualStream(self, link, link.back, link.there)
        return ours, VirtualStream(self, link, link.there, link.back)

    def links(self, process: str | None = None) -> list[Link]:
        """The open links, of one process or of all."""
        return [
            link
            for link in self._links
            if link.is_open and (process is None or process in (link.caller, link.callee))
        ]

    @contextmanager
    def standing_still(self, process: str) -> Iterator[None]:
        """Hold all frames to and from a process during the body; deliver them afterwards."""
        self._stopped.add(process)
        try:
            yield
        finally:
            self._stopped.discard(process)
            for link in self.links(process):
                for wire in link.wires:
                    wire.notify()

    def stands_still(self, link: Link) -> bool:
        return link.caller in self._stopped or link.callee in self._stopped

    def draw_delay_s(self, link: Link) -> float:
        least_s = self.way_s(link.caller, link.callee)
        return least_s + (self._rng.uniform(0, self.max_delay_s) if self.max_delay_s else 0.0)

    def delivered(self, link: Link, is_there: bool, frame: Any) -> None:
        way = f"{link.caller}>{link.callee}" if is_there else f"{link.callee}>{link.caller}"
        data = frame if isinstance(frame, bytes) else frame.SerializeToString(deterministic=True)
        self.digest.add(f"{link.kind} {way}", self.clock.now(), data)


def _no_way(caller: str, callee: str) -> float:
    return 0.0


async def stop_process(network: VirtualNetwork, process: str, seconds: float) -> None:
    """Stop a process for a while, as SIGSTOP and SIGCONT do: keepalive cuts its links meanwhile."""
    with network.standing_still(process):
        if seconds <= KEEPALIVE_S:
            await asyncio.sleep(seconds)
            return
        await asyncio.sleep(KEEPALIVE_S)
        for link in network.links(process):
            link.cut()
        await asyncio.sleep(seconds - KEEPALIVE_S)

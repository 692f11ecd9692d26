"""NIXL without NIXL: agents of one process whose reads land when the virtual clock says so.

A read that was let go of still lands, as it does with NIXL; landing where another read or nobody
expects it is noted.
"""

import asyncio
import ctypes
import random
from dataclasses import dataclass, field

from baton.handoff.transports.nixl_agent import HOST, Memory, NixlAgent, NixlError


@dataclass(eq=False)
class MemoryRead:
    pages: list[tuple[int, int]]
    target: int
    is_over: bool = False
    has_failed: bool = False
    is_released: bool = False


@dataclass
class Fabric:
    """Between all agents. `max_delay_s`: a read takes up to this long; some fail."""

    seed: int = 0
    max_delay_s: float = 0.0
    failure_rate: float = 0.0
    flip_rate: float = 0.0
    agents: dict[str, "MemoryAgent"] = field(default_factory=dict)
    num_landed: int = 0
    # Reads whose bytes came when nobody held the place for them any more.
    num_astray: int = 0
    # Reads that landed after they were let go of, or never wanted again.
    under_way: list[MemoryRead] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def agent(self, name: str) -> "MemoryAgent":
        self.agents[name] = MemoryAgent(self, name)
        return self.agents[name]

    def start(self, read: MemoryRead) -> None:
        if any(other.target == read.target for other in self.under_way):
            self.num_astray += 1
        self.under_way.append(read)
        delay_s = self.rng.random() * self.max_delay_s
        asyncio.get_running_loop().call_later(delay_s, self._land, read)

    def _land(self, read: MemoryRead) -> None:
        self.under_way.remove(read)
        read.is_over = True
        read.has_failed = self.rng.random() < self.failure_rate
        self.num_astray += read.is_released
        target = read.target
        for address, size in read.pages:
            ctypes.memmove(target, address, size)
            target += size
        if self.rng.random() < self.flip_rate:
            ctypes.c_uint8.from_address(target - 1).value ^= 4
        self.num_landed += 1


class MemoryAgent(NixlAgent):
    """One worker's."""

    def __init__(self, fabric: Fabric, name: str) -> None:
        self.memory = HOST
        self.is_reachable = True
        self._fabric = fabric
        self._name = name
        self._regions: list[tuple[int, int]] = []

    def register(self, address: int, num_bytes: int) -> None:
        self._regions.append((address, address + num_bytes))

    def metadata(self) -> bytes:
        return self._name.encode()

    def add_peer(self, metadata: bytes) -> str:
        name = metadata.decode()
        if not self._fabric.agents[name].is_reachable:
            raise NixlError("no such peer")
        return name

    def remove_peer(self, peer: str) -> None: ...

    def start_read(
        self, peer: str, pages: list[tuple[int, int]], target: int, theirs: Memory = HOST
    ) -> MemoryRead:
        regions = self._fabric.agents[peer]._regions
        for address, size in pages:
            if not any(start <= address <= end - size for start, end in regions):
                raise NixlError("not registered there")
        read = MemoryRead(pages, target)
        self._fabric.start(read)
        return read

    def has_ended(self, read: MemoryRead) -> bool:
        if read.is_over and read.has_failed:
            raise NixlError("the read has failed")
        return read.is_over

    def release(self, read: MemoryRead) -> None:
        read.is_released = True

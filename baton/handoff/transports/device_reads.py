"""The core's side of reading and being read by NIXL: between the device's pools of two workers.

Pages are read into a ring on the device (`read_ring.py`), and copied from there into their blocks
between two steps, so that nothing late reaches a block; the copy and the checksum run on the
device. Whose blocks, and what to do when a read fails, is the front's business
(`device_transport.py`). Knows no asyncio and no torch.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from baton.engine.protocol.device_messages import (
    ClosePeer,
    DeviceCommand,
    DevicePool,
    EndReads,
    OpenPeer,
    PagesRead,
    ReadPages,
)
from baton.handoff.block_bytes import MAX_DATA_BYTES
from baton.handoff.transports.nixl_agent import Memory, NixlAgent, NixlError
from baton.handoff.transports.pool_ref import peer_stripes
from baton.handoff.transports.read_ring import PeerLink, Read, ReadRing
from baton.wire.kv_spec import KVSpec

# What arrives during one step has to fit: 12 GB/s while steps take 20 ms.
RING_BYTES = 256 * 2**20
MAX_WAITING_READS = 65536


class PagesOnDevice(Protocol):
    """A pool and a ring beside it, on one device (`baton/model/gpu/device_pages.py`)."""

    @property
    def pool(self) -> tuple[int, int]: ...
    @property
    def ring(self) -> tuple[int, int]: ...
    def place(self, ring_start: int, layer: int, block_ids: Sequence[int]) -> None: ...
    def checksums(self, pages: Sequence[tuple[int, Sequence[int]]]) -> list[list[int]]: ...


@runtime_checkable
class DeviceRunner(Protocol):
    """A runner whose pool is not the shared one."""

    def device_pages(self, ring_bytes: int) -> PagesOnDevice:
        """The pages of the pool that is bound now, and a ring beside it."""


class _Peer:
    """A link, and where the blocks of its pool lie."""

    def __init__(self, link: PeerLink, pool_address: int) -> None:
        self.link = link
        self.pool_address = pool_address


class DeviceReads:
    """The engine's DeviceHandoff: `agent` is for the memory in which `runner` has its pool."""

    def __init__(
        self,
        spec: KVSpec,
        runner: DeviceRunner,
        agent: NixlAgent,
        *,
        ring_bytes: int = RING_BYTES,
    ) -> None:
        self._spec = spec
        self._runner, self._agent = runner, agent
        self._ring_bytes = ring_bytes
        self._pages: PagesOnDevice
        self._ring: ReadRing
        # By the front's number; a str says why there is no link.
        self._peers: dict[int, _Peer | str] = {}
        # Commands whose pages wait in the ring to be copied, with where they lie.
        self._arrived: list[tuple[ReadPages, int]] = []
        self._ended: list[PagesRead] = []
        # Of which transfer the reads under way and in line are.
        self._transfers: dict[Read, int] = {}

    def open(self) -> DevicePool:
        """Raises NixlError when the device's memory cannot be registered."""
        agent = self._agent
        self._pages = pages = self._runner.device_pages(self._ring_bytes)
        agent.register(*pages.pool)
        address, num_bytes = pages.ring
        self._ring = ReadRing(agent, address, num_bytes // MAX_DATA_BYTES)
        return DevicePool(agent.metadata(), pages.pool[0], *agent.memory)

    @property
    def next_poll_s(self) -> float | None:
        return 0.0 if self._ended or self._arrived else self._ring.next_poll_s

    def apply(self, command: DeviceCommand) -> None:
        match command:
            case OpenPeer():
                self._peers[command.link_id] = self._open(command.pool)
            case ClosePeer(link_id=link_id):
                peer = self._peers.pop(link_id)
                if isinstance(peer, _Peer):
                    self._ring.close(peer.link)
            case ReadPages():
                self._read(command)
            case EndReads(transfer_id=transfer_id):
                self._end(transfer_id)

    def poll(self) -> list[PagesRead]:
        self._ring.poll()
        arrived, self._arrived = self._arrived, []
        for command, start in arrived:
            self._pages.place(start, command.layer, command.block_ids)
        if arrived:
            self._check(arrived)
        ended, self._ended = self._ended, []
        return ended

    def checksums(self, block_ids: Sequence[int]) -> list[list[int]]:
        layers = [(layer, block_ids) for layer in range(len(self._spec.layers))]
        by_layer = self._pages.checksums(layers)
        return [list(of_block) for of_block in zip(*by_layer, strict=True)]

    def _open(self, pool: DevicePool) -> _Peer | str:
        try:
            link = self._ring.open(pool.agent, Memory(pool.memory, pool.device_id))
        except NixlError as error:
            return str(error)
        return _Peer(link, pool.address)

    def _read(self, command: ReadPages) -> None:
        peer = self._peers[command.link_id]
        if isinstance(peer, str):
            self._fail(command, peer)
            return
        if self._ring.num_waiting >= MAX_WAITING_READS:
            self._fail(command, f"{MAX_WAITING_READS} reads wait already")
            return

        def end(arrived: int | str) -> None:
            self._transfers.pop(read, None)
            if isinstance(arrived, str):
                self._fail(command, arrived)
            else:
                self._arrived.append((command, arrived))

        layers = range(command.layer, command.layer + 1)
        pages = peer_stripes(self._spec, peer.pool_address, layers, command.peer_block_ids)
        read = Read(peer.link, pages, end)
        self._transfers[read] = command.transfer_id
        self._ring.add(read)

    def _end(self, transfer_id: int) -> None:
        """Nothing of it is copied into a block any more, and its answers are not waited for."""
        unwanted = [read for read, of in self._transfers.items() if of == transfer_id]
        self._ring.give_up(lambda read: read in unwanted, "the transfer has ended")
        for command, start in self._arrived:
            if command.transfer_id == transfer_id:
                self._ring.free(start)
        self._arrived = [each for each in self._arrived if each[0].transfer_id != transfer_id]

    def _check(self, arrived: list[tuple[ReadPages, int]]) -> None:
        """Compare the blocks' contents with their checksums; then the ring's slots are free."""
        checked = [
            (command.layer, [command.block_ids[place] for place, _ in command.checksums])
            for command, _ in arrived
        ]
        found = self._pages.checksums(checked)
        for (command, start), sums in zip(arrived, found, strict=True):
            self._ring.free(start)
            if sums == [wanted for _, wanted in command.checksums]:
                self._ended.append(PagesRead(command.read_id))
            else:
                message = f"wrong checksum at layer {command.layer}"
                self._ended.append(PagesRead(command.read_id, "checksum", message))

    def _fail(self, command: ReadPages, message: str) -> None:
        self._ended.append(PagesRead(command.read_id, "transport", message))

"""The transport over NIXL between host memories: the decode worker reads the peer's pool from afar.

One-sided reads into a ring of this worker's own memory (`read_ring.py`); from there pages are
copied and verified like those of any transport. The peer's blocks stay held until Done, Abort or
the end of the lease.
"""

import asyncio
import mmap

from baton.handoff.block_bytes import MAX_DATA_BYTES
from baton.handoff.outcomes import BadBlocksCause
from baton.handoff.page_copy import PageAddresses
from baton.handoff.stripes import layer_groups, layers_of
from baton.handoff.ticket import BadBlocks
from baton.handoff.transport import Deliver, HostPages, TransportFailed
from baton.handoff.transports.nixl_agent import NixlAgent, NixlError, address_of
from baton.handoff.transports.pool_ref import PoolRefSender, peer_stripes, read_pool_ref
from baton.handoff.transports.read_ring import PeerLink, Read, ReadRing
from baton.handoff.transports.shared_memory import SharedPool
from baton.wire.kv_spec import KVSpec
from baton.wire.v1 import handoff_pb2

NAME = "nixl"
# As much as the credit of one link: a frame takes one slot. What waits is bounded by the credit of
# all links: each frame has taken its bytes from it.
NUM_SLOTS = 16


class PolledRing:
    """A ring in this worker's memory, which the event loop polls while anything is under way."""

    def __init__(self, agent: NixlAgent) -> None:
        self.memory = memoryview(mmap.mmap(-1, NUM_SLOTS * MAX_DATA_BYTES))
        self.reads = ReadRing(agent, address_of(self.memory), NUM_SLOTS)
        self._timer: asyncio.TimerHandle | None = None

    def add(self, read: Read) -> None:
        """Start a read as soon as a slot is free."""
        self.reads.add(read)
        self._poll_in(0.0 if self.reads.next_poll_s is not None else None)

    def _poll_in(self, delay_s: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if delay_s is not None:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._poll)

    def _poll(self) -> None:
        self._timer = None
        self.reads.poll()
        self._poll_in(self.reads.next_poll_s)


class NixlReceiver:
    """The receiving end of one link."""

    name = NAME
    is_on_device = False

    def __init__(self, ring: PolledRing, link: PeerLink, pool_address: int, spec: KVSpec) -> None:
        self._ring = ring
        self._link = link
        self._pool_address = pool_address
        self._spec = spec

    def fetch(self, frame: handoff_pb2.Blocks, deliver: Deliver) -> None:
        try:
            if self._link.is_closed:
                raise BadBlocks(BadBlocksCause.TRANSPORT, "the link is closed")
            ids = read_pool_ref(frame, self._spec)
        except BadBlocks as error:
            deliver(error)
            return

        def end(arrived: int | str) -> None:
            if isinstance(arrived, str):
                deliver(BadBlocks(BadBlocksCause.TRANSPORT, arrived))
            else:
                deliver(self._pages(arrived, frame))

        stripes = peer_stripes(self._spec, self._pool_address, layers_of(frame), ids)
        self._ring.add(Read(self._link, stripes, end))

    def end(self, xfer_id: int) -> None:
        """Pages were written when they were delivered, or will not be."""

    def close(self) -> None:
        if not self._link.is_closed:
            self._ring.reads.close(self._link)

    def _pages(self, start: int, frame: handoff_pb2.Blocks) -> HostPages:
        size = frame.pool_ref.num_bytes // frame.num_blocks
        starts = range(start, start + frame.pool_ref.num_bytes, size)
        addresses = PageAddresses(self._ring.memory, starts)
        return HostPages(addresses, lambda: self._ring.reads.free(start))


class NixlTransport:
    """The transport of a worker with NIXL. Raises NixlMissing and NixlError."""

    name = NAME

    def __init__(self, pool: SharedPool, agent_name: str, *, is_sender: bool) -> None:
        self._pool = pool
        self._agent = NixlAgent(agent_name, is_read=is_sender)
        # Made when the first peer needs them: a decode worker shares no pool, others read none.
        self._ring: PolledRing | None = None
        self._pool_address = 0

    def offer(self, hello: handoff_pb2.DecodeHello) -> "NixlTransport":
        return self

    def connect(self, answer: handoff_pb2.PrefillHello) -> NixlReceiver:
        try:
            if self._ring is None:
                self._ring = PolledRing(self._agent)
            link = self._ring.reads.open(answer.nixl_agent)
        except NixlError as error:
            raise TransportFailed(str(error)) from error
        return NixlReceiver(self._ring, link, answer.nixl_pool_address, self._pool.blocks.spec)

    def accept(
        self, hello: handoff_pb2.DecodeHello, answer: handoff_pb2.PrefillHello
    ) -> PoolRefSender:
        try:
            if not self._pool_address:
                memory = self._pool.blocks.memory
                self._agent.register(address_of(memory), len(memory))
                self._pool_address = address_of(memory)
            answer.nixl_agent = self._agent.metadata()
        except NixlError as error:
            raise TransportFailed(str(error)) from error
        answer.nixl_pool_address = self._pool_address
        groups = layer_groups(self._pool.blocks.spec, hello)
        return PoolRefSender(NAME, self._pool.blocks, groups)

    def close(self) -> None:
        """Nothing was offered that must be taken back."""

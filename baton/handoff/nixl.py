"""The transport over NIXL (RDMA, NVLink, UCX): the decode worker reads the peer's pool from afar.

One-sided reads into a ring of this worker's own memory, whose slots stay out of use until NIXL says
that a read has ended, well or not: nothing that arrives late can reach a block. From there pages
are copied and verified like those of any transport. The peer's blocks stay held until Done, Abort
or the end of the lease. An optional extra: `pip install baton[nixl]`. Uses nothing of NIXL's that
unpickles what a peer has sent. See https://github.com/ai-dynamo/nixl.
"""

import asyncio
import ctypes
import importlib
import logging
import mmap
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from baton.handoff.block_bytes import MAX_DATA_BYTES
from baton.handoff.pool_ref import PoolRefSender, read_pool_ref
from baton.handoff.shared_memory import SharedPool
from baton.handoff.ticket import BadBlocks
from baton.handoff.transport import Deliver, Pages, TransportFailed
from baton.wire.kv_spec import KVSpec
from baton.wire.v1 import handoff_pb2

NAME = "nixl"
# The package depends on the CUDA version; each works without a GPU.
_PACKAGES = ("nixl_cu12", "nixl_cu13")
_BACKEND, _HOST_MEMORY = "UCX", "DRAM"
# As much as the credit of one link: a frame takes one slot.
NUM_SLOTS = 16
POLL_INTERVAL_S = 0.0005
# While all that is under way is what nobody waits for any more.
QUARANTINE_INTERVAL_S = 0.1


class NixlMissing(Exception):
    """NIXL is asked for and not installed."""


class NixlError(Exception):
    """NIXL could not do what it was asked for."""


class NixlAgent:
    """One agent per worker, in the event loop's thread alone.

    One whose memory is read has a thread of NIXL's that answers peers where the network does not
    (TCP); measured, it costs a fifth of a core at rest. One that reads asks NIXL itself.
    Raises NixlMissing and NixlError.
    """

    def __init__(self, name: str, *, is_read: bool) -> None:
        api, bindings = _import()
        self._errors = tuple(
            getattr(bindings, name) for name in dir(bindings) if name.endswith("Error")
        )
        # Links to each peer; their reads are of one kind.
        self._num_links: Counter[str] = Counter()
        config = api.nixl_agent_config(backends=[_BACKEND], enable_prog_thread=is_read)
        self._agent = self._try(lambda: api.nixl_agent(name, config))

    def register(self, address: int, num_bytes: int) -> None:
        """Let peers, and our own reads, use this memory for the life of the agent."""
        regions = [(address, num_bytes, 0, "")]
        self._try(lambda: self._agent.register_memory(regions, _HOST_MEMORY, backends=[_BACKEND]))

    def metadata(self) -> bytes:
        """What a peer needs to reach what is registered here."""
        return bytes(self._try(self._agent.get_agent_metadata))

    def add_peer(self, metadata: bytes) -> str:
        """The peer's name, for a link that is over with `remove_peer`."""
        peer = bytes(self._try(lambda: self._agent.add_remote_agent(metadata))).decode()
        self._num_links[peer] += 1
        return peer

    def remove_peer(self, peer: str) -> None:
        """A link to it is gone, and nothing on it is under way."""
        self._num_links[peer] -= 1
        if not self._num_links[peer]:
            del self._num_links[peer]
            self._try(lambda: self._agent.remove_remote_agent(peer))

    def start_read(self, peer: str, pages: list[tuple[int, int]], target: int) -> Any:
        """Read the peer's `pages` (address, bytes), one after the other, to `target`: a handle."""
        return self._try(lambda: self._start_read(peer, pages, target))

    def has_ended(self, read: Any) -> bool:
        """Whether nothing of a read is under way any more. Raises NixlError when it has failed."""
        state = self._try(lambda: self._agent.check_xfer_state(read))
        if state == "ERR":
            raise NixlError("the read has failed")
        return bool(state == "DONE")

    def release(self, read: Any) -> None:
        """Forget a read, ending it if need be. Raises NixlError while it cannot be ended."""
        self._try(read.release)

    def _start_read(self, peer: str, pages: list[tuple[int, int]], target: int) -> Any:
        num_bytes = sum(size for _, size in pages)
        ours = self._agent.get_xfer_descs([(target, num_bytes, 0)], _HOST_MEMORY)
        if len(pages) > 1:  # NIXL wants equal lists
            starts = range(target, target + num_bytes, pages[0][1])
            ours = self._agent.get_xfer_descs([(s, pages[0][1], 0) for s in starts], _HOST_MEMORY)
        theirs = self._agent.get_xfer_descs([(a, size, 0) for a, size in pages], _HOST_MEMORY)
        read = self._agent.initialize_xfer("READ", ours, theirs, peer)
        self._agent.transfer(read)
        return read

    def _try(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except self._errors as error:
            raise NixlError(f"{type(error).__name__}: {error}") from error


class _Read:
    """A frame whose pages are on the way into a slot."""

    def __init__(self, receiver: "NixlReceiver", frame: handoff_pb2.Blocks, deliver: Deliver):
        self.receiver = receiver
        self.frame = frame
        self.deliver = deliver
        self.num_bytes = frame.pool_ref.num_bytes
        self.slot = -1
        self.handle: Any = None
        self.is_given_up = False

    def give_up(self, cause: str) -> None:
        """Say that the pages will not come; the slot may still be written to."""
        if not self.is_given_up:
            self.is_given_up = True
            self.deliver(BadBlocks("transport", cause))


class ReadRing:
    """NUM_SLOTS slots of a worker's own memory; frames beyond them wait in line."""

    def __init__(self, agent: NixlAgent) -> None:
        self.agent = agent
        memory = mmap.mmap(-1, NUM_SLOTS * MAX_DATA_BYTES)
        self._memory = memoryview(memory)
        self._address = address_of(self._memory)
        agent.register(self._address, len(self._memory))
        self._free = list(range(NUM_SLOTS))
        # Bounded by the credit of all links: each frame has taken its bytes from it.
        self._waiting: deque[_Read] = deque()
        self._active: list[_Read] = []
        self._poll_handle: asyncio.TimerHandle | None = None

    @property
    def num_free_slots(self) -> int:
        """Slots that no read and no undelivered or unread pages use."""
        return len(self._free)

    def add(self, read: _Read) -> None:
        """Start a read as soon as a slot is free."""
        self._waiting.append(read)
        if self._start_waiting():
            self._poll_in(0)

    def give_up(self, receiver: "NixlReceiver") -> None:
        """Its link is gone: what has not arrived does not any more."""
        mine = [read for read in self._waiting if read.receiver is receiver]
        self._waiting = deque(read for read in self._waiting if read.receiver is not receiver)
        for read in [*mine, *(r for r in self._active if r.receiver is receiver)]:
            read.give_up("the link is closed")

    def is_reading(self, receiver: "NixlReceiver") -> bool:
        return any(read.receiver is receiver for read in self._active)

    def _start_waiting(self) -> bool:
        """Whether a read was started."""
        num_active = len(self._active)
        while self._waiting and self._free:
            read = self._waiting.popleft()
            read.slot = self._free.pop()
            try:
                target = self._address + read.slot * MAX_DATA_BYTES
                pages = read.receiver.page_addresses(read.frame)
                read.handle = self.agent.start_read(read.receiver.peer, pages, target)
            except NixlError as error:
                self._free.append(read.slot)
                read.give_up(str(error))
                continue
            self._active.append(read)
        return len(self._active) > num_active

    def _poll_in(self, delay_s: float) -> None:
        if self._poll_handle is not None:
            self._poll_handle.cancel()
        self._poll_handle = asyncio.get_running_loop().call_later(delay_s, self._poll)

    def _poll(self) -> None:
        self._poll_handle = None
        for read in list(self._active):
            self._check(read)
        has_started = self._start_waiting()
        if self._active:
            is_quiet = all(read.is_given_up for read in self._active)
            interval_s = QUARANTINE_INTERVAL_S if is_quiet else POLL_INTERVAL_S
            self._poll_in(0 if has_started else interval_s)

    def _check(self, read: _Read) -> None:
        """Deliver what has arrived; keep the slot until NIXL is through with it."""
        try:
            if not read.is_given_up and not self.agent.has_ended(read.handle):
                return
        except NixlError as error:
            read.give_up(str(error))
        try:
            self.agent.release(read.handle)
        except NixlError:
            return  # quarantined: bytes may still arrive
        self._active.remove(read)
        if read.is_given_up:
            self._free.append(read.slot)
            read.receiver.read_ended()
        else:
            self._deliver(read)

    def _deliver(self, read: _Read) -> None:
        slot, start = read.slot, read.slot * MAX_DATA_BYTES
        size = read.num_bytes // read.frame.num_blocks
        ends = range(start + size, start + read.num_bytes + 1, size)

        def release() -> None:
            self._free.append(slot)

        read.deliver(Pages([self._memory[end - size : end] for end in ends], release))


class NixlReceiver:
    """The receiving end of one link."""

    name = NAME

    def __init__(self, ring: ReadRing, peer: str, pool_address: int, spec: KVSpec) -> None:
        self.peer = peer
        self._ring = ring
        self._pool_address = pool_address
        self._spec = spec
        self._is_closed = False

    def fetch(self, frame: handoff_pb2.Blocks, deliver: Deliver) -> None:
        try:
            if self._is_closed:
                raise BadBlocks("transport", "the link is closed")
            layer = self._spec.layers[frame.layer]
            read_pool_ref(frame, layer.page_bytes(self._spec.block_size))
        except BadBlocks as error:
            deliver(error)
            return
        self._ring.add(_Read(self, frame, deliver))

    def page_addresses(self, frame: handoff_pb2.Blocks) -> list[tuple[int, int]]:
        """(address, bytes) at the peer, one per block."""
        ranges = [self._spec.page_range(i, frame.layer) for i in frame.pool_ref.block_ids]
        return [(self._pool_address + start, end - start) for start, end in ranges]

    def close(self) -> None:
        self._is_closed = True
        self._ring.give_up(self)
        self.read_ended()

    def read_ended(self) -> None:
        """The agent forgets the peer when the link is closed and nothing is under way."""
        if self._is_closed and not self._ring.is_reading(self):
            self._ring.agent.remove_peer(self.peer)


class NixlTransport:
    """What a worker with NIXL can do. Raises NixlMissing and NixlError."""

    name = NAME

    def __init__(self, pool: SharedPool, agent_name: str, *, is_sender: bool) -> None:
        self._pool = pool
        self._agent = NixlAgent(agent_name, is_read=is_sender)
        # Made when the first peer needs them: a decode worker shares no pool, others read none.
        self._ring: ReadRing | None = None
        self._pool_address = 0

    def offer(self, hello: handoff_pb2.DecodeHello) -> "NixlTransport":
        return self

    def connect(self, answer: handoff_pb2.PrefillHello) -> NixlReceiver:
        try:
            if self._ring is None:
                self._ring = ReadRing(self._agent)
            peer = self._agent.add_peer(answer.nixl_agent)
        except NixlError as error:
            raise TransportFailed(str(error)) from error
        spec = self._pool.blocks.spec
        return NixlReceiver(self._ring, peer, answer.nixl_pool_address, spec)

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
        return PoolRefSender(NAME, self._pool.blocks)

    def close(self) -> None:
        """Nothing was offered that must be taken back."""


def address_of(memory: memoryview) -> int:
    """Where writable memory lies; its owner keeps it there."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _import() -> tuple[Any, Any]:
    """NIXL's Python interface and its bindings."""
    for package in _PACKAGES:
        try:
            api = importlib.import_module(f"{package}._api")
        except ModuleNotFoundError:
            continue
        # It would write to standard output, at every start.
        logger = logging.getLogger("nixl")
        logger.handlers.clear()
        logger.setLevel(logging.WARNING)
        return api, importlib.import_module(f"{package}._bindings")
    raise NixlMissing("transport nixl: not installed; pip install baton[nixl]")

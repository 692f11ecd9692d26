"""The transport over NIXL between the pools of two devices: a GPU's blocks reach another GPU's.

The frames name blocks of the sender's pool and carry checksums that its device has computed; the
decode worker's core reads them (`device_reads.py`). The front sees no KV bytes. The peer's blocks
stay held until Done, Abort or the end of the lease.
"""

from collections.abc import Callable, Sequence

from baton.engine.protocol.device_messages import (
    ClosePeer,
    DevicePool,
    EndReads,
    OpenPeer,
    PagesRead,
    ReadPages,
)
from baton.engine.protocol.messages import Command
from baton.handoff.block_bytes import MAX_DATA_BYTES, BlockBytes
from baton.handoff.checksum import header_checksum
from baton.handoff.frame_codec import OutFrame
from baton.handoff.outcomes import BadBlocksCause
from baton.handoff.stripes import layers_of, single_layers
from baton.handoff.ticket import BadBlocks
from baton.handoff.transport import Deliver, Landed
from baton.handoff.transports.pool_ref import read_pool_ref
from baton.wire.kv_spec import KVSpec
from baton.wire.v1 import handoff_pb2

NAME = "nixl-device"


class DeviceSender:
    """The sending end."""

    name = NAME
    max_frame_bytes = MAX_DATA_BYTES

    def __init__(self, spec: KVSpec, checksum_every: int) -> None:
        self.checksum_every: int | None = checksum_every
        self.layer_groups: Sequence[range] = single_layers(spec)
        self._spec = spec

    def pack(self, frame: handoff_pb2.PrefillFrame, block_ids: Sequence[int]) -> OutFrame:
        blocks = frame.blocks
        _, page_bytes = self._spec.stripe(layers_of(blocks))
        blocks.pool_ref.num_bytes = len(block_ids) * page_bytes
        blocks.pool_ref.block_ids.extend(block_ids)
        blocks.checksum = header_checksum(blocks)
        return frame


class CoreReads:
    """The reads that this worker's core has been asked for. `send` gives it commands."""

    def __init__(self, send: Callable[[Command], None]) -> None:
        self.send = send
        self._last_id = 0
        # By read, whom to tell; and the reads of each transfer.
        self._landed: dict[int, Landed] = {}
        self._transfers: dict[int, set[int]] = {}

    @property
    def num_open(self) -> int:
        """Reads whose answers are waited for."""
        return len(self._landed)

    def next_id(self) -> int:
        """A number for a link or a read."""
        self._last_id += 1
        return self._last_id

    def start(self, command: ReadPages, landed: Landed) -> None:
        """Ask for a read; `landed` is told, unless its transfer ends first."""
        self._landed[command.read_id] = landed
        self._transfers.setdefault(command.transfer_id, set()).add(command.read_id)
        self.send(command)

    def end(self, transfer_id: int) -> None:
        """From here on the core writes nothing of this transfer into a block."""
        read_ids = self._transfers.pop(transfer_id, None)
        if read_ids is None:
            return
        for read_id in read_ids:
            self._landed.pop(read_id, None)
        self.send(EndReads(transfer_id))

    def take_answers(self, pages_read: Sequence[PagesRead]) -> None:
        """Take in the core's answer."""
        for read in pages_read:
            landed = self._landed.pop(read.read_id, None)
            if landed is not None:
                landed(
                    None
                    if read.cause is None
                    else BadBlocks(BadBlocksCause(read.cause), read.message)
                )


class RemotePages:
    """One frame's pages, which still lie in the peer's pool."""

    def __init__(self, reads: CoreReads, link_id: int, peer_block_ids: list[int]) -> None:
        self._reads = reads
        self._link_id = link_id
        self._peer_block_ids = peer_block_ids

    def land(
        self,
        blocks: BlockBytes,
        frame: handoff_pb2.Blocks,
        block_ids: Sequence[int],
        landed: Landed,
    ) -> bool:
        if frame.checksum != header_checksum(frame):
            raise BadBlocks(BadBlocksCause.CHECKSUM, f"wrong checksum at layer {frame.layer}")
        checksums = [(each.place, each.sum) for each in frame.pool_ref.page_checksums]
        if any(place >= len(block_ids) for place, _ in checksums):
            raise BadBlocks(BadBlocksCause.CHECKSUM, "a checksum of no page of the frame")
        read = ReadPages(
            read_id=self._reads.next_id(),
            transfer_id=frame.xfer_id,
            link_id=self._link_id,
            layer=frame.layer,
            peer_block_ids=self._peer_block_ids,
            block_ids=list(block_ids),
            checksums=checksums,
        )
        self._reads.start(read, landed)
        return False

    def release(self) -> None:
        """They take no memory here."""


class DeviceReceiver:
    """The receiving end of one link."""

    name = NAME
    is_on_device = True

    def __init__(self, reads: CoreReads, link_id: int, spec: KVSpec) -> None:
        self._reads = reads
        self._link_id = link_id
        self._spec = spec
        self._is_closed = False

    def fetch(self, frame: handoff_pb2.Blocks, deliver: Deliver) -> None:
        try:
            if self._is_closed:
                raise BadBlocks(BadBlocksCause.TRANSPORT, "the link is closed")
            if frame.num_layers > 1:
                raise BadBlocks(BadBlocksCause.LAYER, f"{frame.num_layers} layers where 1 belongs")
            ids = read_pool_ref(frame, self._spec)
        except BadBlocks as error:
            deliver(error)
        else:
            deliver(RemotePages(self._reads, self._link_id, ids))

    def end(self, xfer_id: int) -> None:
        self._reads.end(xfer_id)

    def close(self) -> None:
        self._is_closed = True
        self._reads.send(ClosePeer(self._link_id))


class DeviceTransport:
    """The transport of a worker whose core reads, and is read, by NIXL."""

    name = NAME

    def __init__(
        self, spec: KVSpec, pool: DevicePool, reads: CoreReads, *, checksum_every: int
    ) -> None:
        self._spec = spec
        self._pool = pool
        self._reads = reads
        self._checksum_every = checksum_every

    def offer(self, hello: handoff_pb2.DecodeHello) -> "DeviceTransport":
        return self

    def connect(self, answer: handoff_pb2.PrefillHello) -> DeviceReceiver:
        link_id = self._reads.next_id()
        pool = DevicePool(
            answer.nixl_agent,
            answer.nixl_pool_address,
            answer.nixl_memory,
            answer.nixl_device_id,
        )
        self._reads.send(OpenPeer(link_id, pool))
        return DeviceReceiver(self._reads, link_id, self._spec)

    def accept(
        self, hello: handoff_pb2.DecodeHello, answer: handoff_pb2.PrefillHello
    ) -> DeviceSender:
        answer.nixl_agent = self._pool.agent
        answer.nixl_pool_address = self._pool.address
        answer.nixl_memory = self._pool.memory
        answer.nixl_device_id = self._pool.device_id
        return DeviceSender(self._spec, self._checksum_every)

    def close(self) -> None:
        """Nothing was offered that must be taken back."""

"""How pages get from one pool into another: a transport fills Blocks frames and reads them.

A pair of workers agrees on one transport in its hello (decision 0010, `negotiation.py`). The frames
themselves always travel over the shared stream; a transport decides what is inside: the bytes
(`transports/grpc_stream.py`), or the peer's block ids, whose pages are read from memory that can be
reached (`transports/shared_memory.py`, `transports/nixl.py`). Whatever it is, the receiver copies
the pages into its own pool and verifies what it has copied. Knows nothing of streams, leases or
credit.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from baton.handoff.block_bytes import BlockBytes
from baton.handoff.checksum import header_checksum
from baton.handoff.frame_codec import OutFrame
from baton.handoff.outcomes import BadBlocksCause
from baton.handoff.page_copy import PageAddresses
from baton.handoff.stripes import layers_of
from baton.handoff.ticket import BadBlocks
from baton.wire.v1 import handoff_pb2

# Works everywhere; where another transport has failed, this one is left.
PLAIN = "grpc"


class TransportFailed(Exception):
    """A transport cannot be set up with this peer; another one may."""


def _nothing() -> None:
    """Most pages need no release."""


# Told once, later: None = the pages are in their blocks and right.
Landed = Callable[[BadBlocks | None], None]


class Pages(Protocol):
    """One frame's stripes, one per block, wherever they are; there until `release`."""

    def land(
        self,
        blocks: BlockBytes,
        frame: handoff_pb2.Blocks,
        block_ids: Sequence[int],
        landed: Landed,
    ) -> bool:
        """Write them into these blocks and verify them. Raises BadBlocks.

        True: it is done. False: `landed` will tell, unless the end of the transfer comes first.
        """

    def release(self) -> None:
        """Where they were is not needed any more. Before that, `land` was called or is not."""


class HostPages:
    """Pages in memory that can be read here."""

    __slots__ = ("addresses", "release")

    def __init__(self, addresses: PageAddresses, release: Callable[[], None] = _nothing) -> None:
        self.addresses = addresses
        self.release = release

    def land(
        self,
        blocks: BlockBytes,
        frame: handoff_pb2.Blocks,
        block_ids: Sequence[int],
        landed: Landed,
    ) -> bool:
        written = blocks.write(layers_of(frame), block_ids, self.addresses, header_checksum(frame))
        if written != frame.checksum:
            layers = layers_of(frame)
            raise BadBlocks(
                BadBlocksCause.CHECKSUM, f"wrong checksum at layers {layers.start}:{layers.stop}"
            )
        return True


Deliver = Callable[[Pages | BadBlocks], None]


class SendingEnd(Protocol):
    """The prefill worker's end."""

    name: str
    # Of pages in one frame; no smaller than the longest stripe.
    max_frame_bytes: int
    # The layers whose pages go into one frame, in the order in which they leave.
    layer_groups: Sequence[range]
    # As in AddSequence: None = it is this process that reads the pages.
    checksum_every: int | None

    def pack(self, frame: handoff_pb2.PrefillFrame, block_ids: Sequence[int]) -> OutFrame:
        """Put in what the peer needs for the stripes of these blocks.

        Everything else in the frame is set before. Returns what is to be sent.
        """


class ReceivingEnd(Protocol):
    """The decode worker's end, of one link."""

    name: str
    # The core writes the pages where it computes, not this process into the shared pool.
    is_on_device: bool

    def fetch(self, frame: handoff_pb2.Blocks, deliver: Deliver) -> None:
        """Call `deliver` once with the frame's pages, or with why there are none; maybe at once.

        The frame's layers and number of blocks have been checked, and nothing else.
        """

    def end(self, xfer_id: int) -> None:
        """The transfer has ended: nothing of it is written into a block after this."""

    def close(self) -> None:
        """The link is gone. Pages that were delivered stay readable; no more are."""


def num_payload_bytes(frame: handoff_pb2.Blocks) -> int:
    """Bytes that a frame took from the credit: of its data, or of the pages that it names."""
    if frame.HasField("pool_ref"):
        return frame.pool_ref.num_bytes
    return len(frame.data)


def check_size(num_bytes: int, num_wanted: int) -> None:
    """Raises BadBlocks when a frame has other than whole stripes, one per block."""
    if num_bytes != num_wanted:
        raise BadBlocks(BadBlocksCause.SIZE, f"{num_bytes} bytes of data where {num_wanted} belong")

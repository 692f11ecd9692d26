"""How pages get from one pool into another: a transport fills Blocks frames and reads them.

A pair of workers agrees on one transport in its hello (decision D8, `negotiation.py`). The frames
themselves always travel over the shared stream; a transport decides what is inside: the bytes
(`grpc_stream.py`), or the peer's block ids, whose pages are read from memory that can be reached
(`shared_memory.py`, `nixl.py`). Whatever it is, the receiver copies the pages into its own pool and
verifies what it has copied. Knows nothing of streams, leases or credit.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from baton.handoff.ticket import BadBlocks
from baton.wire.v1 import handoff_pb2

# Works everywhere; where another transport has failed, this one is left.
PLAIN = "grpc"


class TransportFailed(Exception):
    """A transport cannot be set up with this peer; another one may."""


def _nothing() -> None:
    """Most pages need no release."""


class Pages:
    """One frame's pages, one per block, which stay readable until `release`."""

    __slots__ = ("num_bytes", "release", "views")

    def __init__(self, views: Sequence[memoryview], release: Callable[[], None] = _nothing) -> None:
        self.views = views
        self.num_bytes = sum(map(len, views))
        self.release = release


Deliver = Callable[[Pages | BadBlocks], None]


class SendingEnd(Protocol):
    """The prefill worker's end."""

    name: str
    # Of pages in one frame; no smaller than the largest page.
    max_frame_bytes: int

    def pack(self, frame: handoff_pb2.Blocks, block_ids: Sequence[int]) -> None:
        """Put in what the peer needs for the pages of `frame.layer` of these blocks.

        The frame's place (xfer_id, epoch, layer, first_block, num_blocks) is set before.
        """


class ReceivingEnd(Protocol):
    """The decode worker's end, of one link."""

    name: str

    def fetch(self, frame: handoff_pb2.Blocks, deliver: Deliver) -> None:
        """Call `deliver` once with the frame's pages, or with why there are none; maybe at once.

        The frame's layer and number of blocks have been checked, and nothing else.
        """

    def close(self) -> None:
        """The link is gone. Pages that were delivered stay readable; no more are."""


def num_payload_bytes(frame: handoff_pb2.Blocks) -> int:
    """Bytes that a frame took from the credit: of its data, or of the pages that it names."""
    if frame.HasField("pool_ref"):
        return frame.pool_ref.num_bytes
    return len(frame.data)


def check_size(num_bytes: int, num_wanted: int) -> None:
    """Raises BadBlocks when a frame has other than whole pages, one per block."""
    if num_bytes != num_wanted:
        raise BadBlocks("size", f"{num_bytes} bytes of data where {num_wanted} belong")

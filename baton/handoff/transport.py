"""How pages get from one pool into another: the transport fills and empties Blocks frames.

A pair of workers agrees on one transport in its hello (decision D8). The frames themselves always
travel over the shared stream; a transport decides what is inside: the bytes (`grpc_stream.py`), or
a reference to memory that the peer can reach. Knows nothing of streams, leases or credit.
"""

from collections.abc import Sequence
from typing import Protocol

from baton.wire.failures import Incompatible
from baton.wire.v1 import handoff_pb2


class Transport(Protocol):
    """One side's view of the pool through one way of moving pages."""

    name: str

    def pack(self, frame: handoff_pb2.Blocks, block_ids: Sequence[int]) -> int:
        """Put the pages of `frame.layer` of these blocks in; returns the payload's bytes.

        The frame's place (xfer_id, epoch, layer, first_block, num_blocks) is set before.
        """

    def unpack(self, frame: handoff_pb2.Blocks, block_ids: Sequence[int]) -> None:
        """Verify the payload and write it into these blocks. Raises BadBlocks, writing nothing."""


def choose_transport(ours: Sequence[str], theirs: Sequence[str]) -> str:
    """The first of ours that the peer offers too. Raises Incompatible naming both lists."""
    for name in ours:
        if name in theirs:
            return name
    here, there = ", ".join(ours) or "none", ", ".join(theirs) or "none"
    raise Incompatible(f"no common transport: {here} here, {there} there")

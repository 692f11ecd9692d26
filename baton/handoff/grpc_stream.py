"""The transport that works everywhere: pages travel inside the Blocks frames of the gRPC stream.

The checksum covers the frame's place as well as the data, so that pages which arrive whole but
under another layer or block do not pass.
"""

import struct
from collections.abc import Sequence
from zlib import crc32

from baton.handoff.block_bytes import BlockBytes
from baton.handoff.ticket import BadBlocks
from baton.wire.v1 import handoff_pb2

# xfer_id, epoch, layer, first_block, num_blocks.
_PLACE = struct.Struct("<QIIII")


def checksum(frame: handoff_pb2.Blocks) -> int:
    """CRC-32 over the frame's place and its inline data."""
    place = _PLACE.pack(
        frame.xfer_id, frame.epoch, frame.layer, frame.first_block, frame.num_blocks
    )
    return crc32(frame.data, crc32(place))


class GrpcStreamTransport:
    """Copies pages between `blocks` and frames."""

    name = "grpc"

    def __init__(self, blocks: BlockBytes) -> None:
        self._blocks = blocks

    def pack(self, frame: handoff_pb2.Blocks, block_ids: Sequence[int]) -> int:
        frame.data = self._blocks.gather(frame.layer, block_ids)
        frame.checksum = checksum(frame)
        return len(frame.data)

    def unpack(self, frame: handoff_pb2.Blocks, block_ids: Sequence[int]) -> None:
        if frame.WhichOneof("payload") != "data":
            raise BadBlocks("payload", "the frame carries no inline data")
        wanted = len(block_ids) * self._blocks.page_bytes(frame.layer)
        if len(frame.data) != wanted:
            raise BadBlocks("size", f"{len(frame.data)} bytes of data where {wanted} belong")
        if checksum(frame) != frame.checksum:
            raise BadBlocks("checksum", f"wrong checksum at layer {frame.layer}")
        self._blocks.scatter(frame.layer, block_ids, frame.data)

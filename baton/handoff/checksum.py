"""The seed of a Blocks frame's checksum: the place of the frame.

Pages which arrive whole but under another transfer, layer or block do not pass then.
"""

import struct
from zlib import crc32

from baton.wire.v1 import handoff_pb2

# xfer_id, epoch, layer, first_block, num_blocks.
_HEADER = struct.Struct("<QIIII")
_NUM_LAYERS = struct.Struct("<I")


def header_checksum(frame: handoff_pb2.Blocks) -> int:
    """CRC-32 of the frame's place; the checksum goes on with its pages."""
    header = (frame.xfer_id, frame.epoch, frame.layer, frame.first_block, frame.num_blocks)
    num_layers = _NUM_LAYERS.pack(frame.num_layers) if frame.num_layers else b""
    return crc32(_HEADER.pack(*header) + num_layers)

"""Frames that name blocks of the sender's pool, which the receiver reads by itself.

What the transports without inline data have in common. Knows nothing of how the pool is reached.
"""

from collections.abc import Sequence

from baton.handoff.block_bytes import MAX_DATA_BYTES, BlockBytes
from baton.handoff.checksum import header_checksum
from baton.handoff.frame_codec import OutFrame
from baton.handoff.outcomes import BadBlocksCause
from baton.handoff.stripes import layers_of
from baton.handoff.ticket import BadBlocks
from baton.handoff.transport import check_size
from baton.wire.kv_spec import KVSpec
from baton.wire.v1 import handoff_pb2


class PoolRefSender:
    """The sending end; the blocks stay held by their owner."""

    checksum_every: int | None = None

    def __init__(
        self,
        name: str,
        blocks: BlockBytes,
        layer_groups: Sequence[range],
        max_frame_bytes: int = MAX_DATA_BYTES,
    ) -> None:
        self.name = name
        self.layer_groups = layer_groups
        self.max_frame_bytes = max_frame_bytes
        self._blocks = blocks

    def pack(self, frame: handoff_pb2.PrefillFrame, block_ids: Sequence[int]) -> OutFrame:
        blocks, layers = frame.blocks, layers_of(frame.blocks)
        blocks.pool_ref.num_bytes = len(block_ids) * self._blocks.stripe_bytes(layers)
        blocks.pool_ref.block_ids.extend(block_ids)
        blocks.checksum = self._blocks.checksum(layers, block_ids, header_checksum(blocks))
        return frame


def read_pool_ref(frame: handoff_pb2.Blocks, spec: KVSpec) -> list[int]:
    """The ids of the peer's blocks, one per block of the frame. Raises BadBlocks."""
    if frame.WhichOneof("payload") != "pool_ref":
        raise BadBlocks(BadBlocksCause.PAYLOAD, "the frame names no blocks of the pool")
    ids = list(frame.pool_ref.block_ids)
    if len(ids) != frame.num_blocks:
        raise BadBlocks(
            BadBlocksCause.SIZE, f"{len(ids)} blocks named where {frame.num_blocks} belong"
        )
    check_size(frame.pool_ref.num_bytes, len(ids) * spec.stripe(layers_of(frame))[1])
    return ids


def peer_stripes(
    spec: KVSpec, pool_address: int, layers: range, block_ids: Sequence[int]
) -> list[tuple[int, int]]:
    """(address, bytes) of these stripes in a peer's pool, which begins at `pool_address` there."""
    offset, num_bytes = spec.stripe(layers)
    first = pool_address + offset
    return [(first + block_id * spec.row_bytes, num_bytes) for block_id in block_ids]

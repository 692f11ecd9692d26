"""The transport that works everywhere: pages travel inside the Blocks frames of the gRPC stream."""

from collections.abc import Sequence

from baton.handoff.block_bytes import BlockBytes
from baton.handoff.checksum import place_checksum
from baton.handoff.frame_codec import OutFrame, encode_blocks
from baton.handoff.page_copy import Places
from baton.handoff.ticket import BadBlocks
from baton.handoff.transport import PLAIN, Deliver, HostPages, check_size
from baton.wire.v1 import handoff_pb2

# Twice this was no faster than this, which was a tenth faster than half of it. The stream of a pair
# of workers is shared by all their transfers.
MAX_FRAME_BYTES = 2 * 2**20


class GrpcEnd:
    """Either end: copies pages of `blocks` into frames, and finds them in frames."""

    name = PLAIN
    max_frame_bytes = MAX_FRAME_BYTES
    checksum_every = 0
    is_on_device = False

    def __init__(self, blocks: BlockBytes) -> None:
        self._blocks = blocks

    def pack(self, frame: handoff_pb2.PrefillFrame, block_ids: Sequence[int]) -> OutFrame:
        blocks = frame.blocks
        blocks.checksum = self._blocks.checksum(blocks.layer, block_ids, place_checksum(blocks))
        return encode_blocks(blocks, self._blocks.pages(blocks.layer, block_ids))

    def fetch(self, frame: handoff_pb2.Blocks, deliver: Deliver) -> None:
        deliver(self._find(frame))

    def end(self, xfer_id: int) -> None:
        """Pages were written when they were delivered, or will not be."""

    def close(self) -> None:
        """Nothing is held."""

    def _find(self, frame: handoff_pb2.Blocks) -> HostPages | BadBlocks:
        if not frame.HasField("data"):
            return BadBlocks("payload", "the frame carries no inline data")
        data = memoryview(frame.data)
        size = self._blocks.page_bytes(frame.layer)
        try:
            check_size(len(data), size * frame.num_blocks)
        except BadBlocks as error:
            return error
        return HostPages(Places(data, range(0, len(data), size)))


class GrpcTransport:
    """Every worker can; nothing needs to be said in the hello."""

    name = PLAIN

    def __init__(self, blocks: BlockBytes) -> None:
        self._end = GrpcEnd(blocks)

    def offer(self, hello: handoff_pb2.DecodeHello) -> "GrpcTransport":
        return self

    def connect(self, answer: handoff_pb2.PrefillHello) -> GrpcEnd:
        return self._end

    def accept(self, hello: handoff_pb2.DecodeHello, answer: handoff_pb2.PrefillHello) -> GrpcEnd:
        return self._end

    def close(self) -> None:
        """Nothing was offered that must be taken back."""

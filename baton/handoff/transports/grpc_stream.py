"""The transport that works everywhere: pages travel inside the Blocks frames of the gRPC stream."""

from collections.abc import Sequence

from baton.handoff.block_bytes import BlockBytes
from baton.handoff.checksum import header_checksum
from baton.handoff.frame_codec import OutFrame, encode_blocks
from baton.handoff.outcomes import BadBlocksCause
from baton.handoff.page_copy import PageAddresses
from baton.handoff.stripes import layer_groups, layers_of
from baton.handoff.ticket import BadBlocks
from baton.handoff.transport import PLAIN, Deliver, HostPages, check_size
from baton.wire.kv_spec import KVSpec
from baton.wire.v1 import handoff_pb2

# Twice this was no faster than this, which was a tenth faster than half of it. The stream of a pair
# of workers is shared by all their transfers.
MAX_FRAME_BYTES = 2 * 2**20


class GrpcSender:
    """The sending end: copies stripes of `blocks` into frames."""

    name = PLAIN
    max_frame_bytes = MAX_FRAME_BYTES
    checksum_every: int | None = None

    def __init__(self, blocks: BlockBytes, layer_groups: Sequence[range]) -> None:
        self.layer_groups = layer_groups
        self._blocks = blocks

    def pack(self, frame: handoff_pb2.PrefillFrame, block_ids: Sequence[int]) -> OutFrame:
        blocks, layers = frame.blocks, layers_of(frame.blocks)
        blocks.checksum = self._blocks.checksum(layers, block_ids, header_checksum(blocks))
        return encode_blocks(blocks, self._blocks.stripes(layers, block_ids))


class GrpcReceiver:
    """The receiving end: finds stripes, as `spec` has them, in frames."""

    name = PLAIN
    is_on_device = False

    def __init__(self, spec: KVSpec) -> None:
        self._spec = spec

    def fetch(self, frame: handoff_pb2.Blocks, deliver: Deliver) -> None:
        deliver(self._find(frame))

    def end(self, xfer_id: int) -> None:
        """Pages were written when they were delivered, or will not be."""

    def close(self) -> None:
        """Nothing is held."""

    def _find(self, frame: handoff_pb2.Blocks) -> HostPages | BadBlocks:
        if not frame.HasField("data"):
            return BadBlocks(BadBlocksCause.PAYLOAD, "the frame carries no inline data")
        data = memoryview(frame.data)
        _, size = self._spec.stripe(layers_of(frame))
        try:
            check_size(len(data), size * frame.num_blocks)
        except BadBlocks as error:
            return error
        return HostPages(PageAddresses(data, range(0, len(data), size)))


class GrpcTransport:
    """Every worker can; nothing needs to be said in the hello."""

    name = PLAIN

    def __init__(self, blocks: BlockBytes) -> None:
        self._blocks = blocks

    def offer(self, hello: handoff_pb2.DecodeHello) -> "GrpcTransport":
        return self

    def connect(self, answer: handoff_pb2.PrefillHello) -> GrpcReceiver:
        return GrpcReceiver(self._blocks.spec)

    def accept(
        self, hello: handoff_pb2.DecodeHello, answer: handoff_pb2.PrefillHello
    ) -> GrpcSender:
        return GrpcSender(self._blocks, layer_groups(self._blocks.spec, hello))

    def close(self) -> None:
        """Nothing was offered that must be taken back."""

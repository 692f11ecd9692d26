"""A pair of pools with the same spec, and a ticket."""

import random
from dataclasses import dataclass

import pytest

from baton.handoff.block_bytes import BlockBytes
from baton.handoff.frame_codec import serialize
from baton.handoff.receiver import Receiver
from baton.handoff.sender import Sender
from baton.handoff.stripes import layer_groups
from baton.handoff.ticket import BadBlocks, Ticket
from baton.handoff.transport import HostPages, ReceivingEnd, SendingEnd
from baton.handoff.transports.grpc_stream import GrpcReceiver, GrpcSender
from baton.handoff.transports.pool_ref import PoolRefSender
from baton.handoff.transports.shared_memory import SharedMemoryReceiver
from baton.wire.kv_spec import KVSpec
from baton.wire.v1 import handoff_pb2

BLOCK_SIZE = 4
# The first two have equal heads, so that their pages may go together.
SPEC = KVSpec.of_layers(
    BLOCK_SIZE, [(2, 8, 8, "float32"), (2, 4, 4, "float32"), (1, 4, 6, "bfloat16")]
)


@dataclass
class Pair:
    """Sender and receiver of one transfer, with their pools."""

    sender: Sender
    receiver: Receiver
    source: bytearray
    target: bytearray
    # Of the blocks that the receiver lacks.
    source_rows: list[int]
    target_rows: list[int]
    consumed: list[int]
    late: list[BadBlocks | None]
    end: ReceivingEnd
    num_bytes_sent: int = 0

    def next_frame(self) -> handoff_pb2.PrefillFrame:
        """The sender's next frame, as protobuf reads it."""
        self.num_bytes_sent += self.sender.next_bytes()
        return handoff_pb2.PrefillFrame.FromString(serialize(self.sender.next_frame()))

    def take(self, frame: handoff_pb2.Blocks) -> None:
        """Check, fetch and write a frame, as the decode worker does. Raises what goes wrong."""
        self.receiver.check(frame)
        fetched: list[HostPages | BadBlocks] = []
        self.end.fetch(frame, fetched.append)
        (pages,) = fetched
        if isinstance(pages, BadBlocks):
            raise pages
        self.receiver.take(frame, pages)

    def assert_moved(self) -> None:
        """Rows of the missing blocks are equal, every other target row is untouched."""
        size = SPEC.row_bytes
        wanted = bytearray(len(self.target))
        for source, target in zip(self.source_rows, self.target_rows, strict=True):
            start, to = source * size, target * size
            wanted[to : to + size] = self.source[start : start + size]
        assert self.target == wanted


def make_ends(
    transport: str, source: BlockBytes, target: BlockBytes, *, takes_stripes: bool
) -> tuple[SendingEnd, ReceivingEnd]:
    """Of a transport that has been set up between two pools."""
    groups = layer_groups(SPEC, handoff_pb2.DecodeHello(takes_stripes=takes_stripes))
    if transport == "shm":
        return PoolRefSender("shm", source, groups), SharedMemoryReceiver(source)
    return GrpcSender(source, groups), GrpcReceiver(target.spec)


def make_pair(
    num_tokens: int,
    first_missing_block: int = 0,
    seed: int = 0,
    transport: str = "grpc",
    *,
    takes_stripes: bool = True,
) -> Pair:
    rng = random.Random(seed)
    num_blocks = SPEC.num_blocks_for(num_tokens)
    source = bytearray(rng.randbytes(SPEC.row_bytes * (num_blocks + 3)))
    target = bytearray(SPEC.row_bytes * (num_blocks + 5))
    source_rows = rng.sample(range(num_blocks + 3), num_blocks)[first_missing_block:]
    target_rows = rng.sample(range(num_blocks + 5), num_blocks)[first_missing_block:]
    ticket = Ticket(7, "r-1", 2, b"c" * 16, first_missing_block, num_blocks)
    consumed: list[int] = []
    late: list[BadBlocks | None] = []
    source_blocks = BlockBytes(SPEC, memoryview(source))
    target_blocks = BlockBytes(SPEC, memoryview(target))
    sending, end = make_ends(transport, source_blocks, target_blocks, takes_stripes=takes_stripes)
    return Pair(
        Sender(ticket, source_rows, source_blocks, sending),
        Receiver(ticket, target_blocks, consumed.append, late.append),
        source,
        target,
        source_rows,
        target_rows,
        consumed,
        late,
        end,
    )


@pytest.fixture(params=["grpc", "shm"])
def transport(request: pytest.FixtureRequest) -> str:
    """Whatever holds for a transfer holds by each of these."""
    return str(request.param)


@pytest.fixture
def pair(transport: str) -> Pair:
    """Ten tokens: two full blocks and a partial one."""
    return make_pair(10, transport=transport)

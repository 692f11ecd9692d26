"""A pair of pools with the same spec, and a ticket."""

import random
from dataclasses import dataclass

import pytest

from baton.handoff.block_bytes import BlockBytes
from baton.handoff.grpc_stream import GrpcStreamTransport
from baton.handoff.receiver import Receiver
from baton.handoff.sender import Sender
from baton.handoff.ticket import Ticket
from baton.wire.kv_spec import KVSpec

BLOCK_SIZE = 4
SPEC = KVSpec.of_layers(BLOCK_SIZE, [(2, 8, 8, "float32"), (1, 4, 6, "bfloat16")])


@dataclass
class Pair:
    """Sender and receiver of one transfer, with their pools."""

    sender: Sender
    receiver: Receiver
    source: bytearray
    target: bytearray
    source_ids: list[int]
    target_ids: list[int]
    consumed: list[int]

    def assert_moved(self) -> None:
        """Rows of the missing blocks are equal, every other target row is untouched."""
        ticket = self.receiver.ticket
        size = SPEC.row_bytes
        wanted = bytearray(len(self.target))
        for index in range(ticket.first_missing_block, ticket.num_blocks):
            start, end = self.source_ids[index] * size, (self.source_ids[index] + 1) * size
            to = self.target_ids[index] * size
            wanted[to : to + size] = self.source[start:end]
        assert self.target == wanted


def make_pair(num_tokens: int, first_missing_block: int = 0, seed: int = 0) -> Pair:
    rng = random.Random(seed)
    num_blocks = SPEC.num_blocks_for(num_tokens)
    source = bytearray(rng.randbytes(SPEC.row_bytes * (num_blocks + 3)))
    target = bytearray(SPEC.row_bytes * (num_blocks + 5))
    source_ids = rng.sample(range(num_blocks + 3), num_blocks)
    target_ids = rng.sample(range(num_blocks + 5), num_blocks + 1)
    ticket = Ticket(7, "r-1", 2, b"c" * 16, first_missing_block, num_blocks)
    consumed: list[int] = []
    source_blocks = BlockBytes(SPEC, memoryview(source))
    target_blocks = BlockBytes(SPEC, memoryview(target))
    return Pair(
        Sender(ticket, source_ids, source_blocks, GrpcStreamTransport(source_blocks)),
        Receiver(ticket, target_blocks, GrpcStreamTransport(target_blocks), consumed.append),
        source,
        target,
        source_ids,
        target_ids,
        consumed,
    )


@pytest.fixture
def pair() -> Pair:
    """Ten tokens: two full blocks and a partial one."""
    return make_pair(10)

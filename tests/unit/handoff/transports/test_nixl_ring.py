"""The ring of slots that NIXL reads into, with an agent whose reads end when the test says so."""

import asyncio
import ctypes
from typing import Any

import pytest

from baton.handoff.block_bytes import MAX_DATA_BYTES, BlockBytes
from baton.handoff.ticket import BadBlocks
from baton.handoff.transport import HostPages
from baton.handoff.transports import read_ring
from baton.handoff.transports.nixl import NUM_SLOTS, NixlReceiver, PolledRing
from baton.handoff.transports.nixl_agent import HOST, Memory, NixlAgent, NixlError, address_of
from baton.handoff.transports.pool_ref import PoolRefSender
from baton.handoff.transports.read_ring import PeerLink
from baton.testing.virtual_clock import run_virtual
from baton.wire.v1 import handoff_pb2
from tests.unit.handoff.conftest import SPEC


class Read:
    def __init__(self, pages: list[tuple[int, int]], target: int) -> None:
        self.pages = pages
        self.target = target
        self.state = "PROC"

    def move(self) -> None:
        """The bytes arrive."""
        target = self.target
        for address, size in self.pages:
            ctypes.memmove(target, address, size)
            target += size


class FakeAgent(NixlAgent):
    """Moves bytes inside this process."""

    def __init__(self) -> None:
        self.reads: list[Read] = []
        self.released: list[Read] = []
        self.removed: list[str] = []
        self.fails_to_start = False

    def register(self, address: int, num_bytes: int) -> None: ...

    def remove_peer(self, peer: str) -> None:
        self.removed.append(peer)

    def start_read(
        self, peer: str, pages: list[tuple[int, int]], target: int, theirs: Memory = HOST
    ) -> Read:
        if self.fails_to_start:
            raise NixlError("no such memory")
        self.reads.append(Read(pages, target))
        return self.reads[-1]

    def has_ended(self, read: Read) -> bool:
        if read.state == "ERR":
            raise NixlError("the peer is gone")
        return read.state == "DONE"

    def release(self, read: Read) -> None:
        self.released.append(read)


class Reading:
    """A receiver over a pool of random bytes, and what it delivered."""

    def __init__(self) -> None:
        self.agent = FakeAgent()
        self.polled = PolledRing(self.agent)
        self.ring = self.polled.reads
        self.pool = bytearray(range(256)) * (SPEC.row_bytes * 8 // 256 + 1)
        self.pool = self.pool[: SPEC.row_bytes * 8]
        self.view = memoryview(self.pool)
        self.blocks = BlockBytes(SPEC, self.view)
        link = PeerLink("prefill-1")
        self.receiver = NixlReceiver(self.polled, link, address_of(self.view), SPEC)
        self.delivered: list[HostPages | BadBlocks] = []

    def fetch(self, *block_ids: int, layer: int = 0, num_layers: int = 0) -> None:
        place = handoff_pb2.Blocks(layer=layer, num_layers=num_layers, num_blocks=len(block_ids))
        frame = handoff_pb2.PrefillFrame(blocks=place)
        PoolRefSender("nixl", self.blocks, []).pack(frame, block_ids)
        self.receiver.fetch(frame.blocks, self.delivered.append)

    def end(self, read: Read, state: str = "DONE") -> None:
        read.move()
        read.state = state


async def turns(seconds: float = 0.01) -> None:
    await asyncio.sleep(seconds)


def scenario(test: Any) -> Any:
    def run() -> None:
        run_virtual(test())

    run.__name__ = test.__name__
    return run


@scenario
async def test_pages_are_delivered_when_they_have_arrived_and_the_slot_is_used_again() -> None:
    r = Reading()
    r.fetch(3, 1, layer=1)
    await turns()
    assert not r.delivered

    r.end(r.agent.reads[0])
    await turns()

    (pages,) = r.delivered
    assert isinstance(pages, HostPages)
    size = r.blocks.stripe_bytes(range(1, 2))
    arrived = [pages.addresses.memory[start : start + size] for start in pages.addresses.starts]
    assert arrived == r.blocks.stripes(range(1, 2), [3, 1])
    assert r.ring.num_free_slots == NUM_SLOTS - 1
    pages.release()
    assert r.ring.num_free_slots == NUM_SLOTS


@scenario
async def test_frames_beyond_the_slots_wait_in_line() -> None:
    r = Reading()
    for i in range(NUM_SLOTS + 3):
        r.fetch(i % 8)
    assert len(r.agent.reads) == NUM_SLOTS

    for read in r.agent.reads[:2]:
        r.end(read)
    await turns()
    assert len(r.agent.reads) == NUM_SLOTS, "delivered pages still lie in their slots"
    for pages in r.delivered:
        assert isinstance(pages, HostPages)
        pages.release()
    r.fetch(0)
    await turns()

    assert len(r.agent.reads) == NUM_SLOTS + 2


@scenario
async def test_a_read_that_fails_is_told_and_its_slot_used_again() -> None:
    r = Reading()
    r.fetch(3)

    r.agent.reads[0].state = "ERR"
    await turns()

    assert [type(outcome) for outcome in r.delivered] == [BadBlocks]
    assert r.ring.num_free_slots == NUM_SLOTS


@scenario
async def test_a_read_that_cannot_start_is_told() -> None:
    r = Reading()
    r.agent.fails_to_start = True

    r.fetch(3)

    (error,) = r.delivered
    assert isinstance(error, BadBlocks)
    assert error.cause == "transport"
    assert r.ring.num_free_slots == NUM_SLOTS


@scenario
async def test_the_slot_of_a_lost_link_is_quarantined_until_the_read_has_ended() -> None:
    r = Reading()
    r.fetch(3)
    (read,) = r.agent.reads

    r.receiver.close()
    await turns(5)

    assert [type(outcome) for outcome in r.delivered] == [BadBlocks]
    assert r.ring.num_free_slots == NUM_SLOTS - 1
    assert r.agent.removed == []
    assert r.agent.released == []
    r.end(read)
    await turns(1)
    assert r.ring.num_free_slots == NUM_SLOTS
    assert r.agent.removed == ["prefill-1"]
    assert len(r.delivered) == 1


@scenario
async def test_a_closed_link_gives_up_what_waits_and_takes_no_more() -> None:
    r = Reading()
    for i in range(NUM_SLOTS + 2):
        r.fetch(i % 8)

    r.receiver.close()
    r.fetch(1)
    for read in r.agent.reads:
        r.end(read, "ERR")
    await turns(1)

    assert len(r.delivered) == NUM_SLOTS + 3
    assert all(isinstance(outcome, BadBlocks) for outcome in r.delivered)
    assert r.ring.num_free_slots == NUM_SLOTS
    assert r.agent.removed == ["prefill-1"]


@scenario
async def test_a_stripe_is_read_as_one_piece_of_each_block() -> None:
    r = Reading()
    r.fetch(3, 1, num_layers=2)
    await turns()

    (read,) = r.agent.reads
    r.end(read)
    await turns()

    (pages,) = r.delivered
    assert isinstance(pages, HostPages)
    stripes = r.blocks.stripes(range(2), [3, 1])
    assert [size for _, size in read.pages] == [len(stripe) for stripe in stripes]
    size = r.blocks.stripe_bytes(range(2))
    assert [pages.addresses.memory[s : s + size] for s in pages.addresses.starts] == stripes


@scenario
async def test_pages_that_exceed_a_slot_are_not_read() -> None:
    r = Reading()
    num_bytes = MAX_DATA_BYTES // 2 + 1
    outcomes: list[int | str] = []

    r.polled.add(read_ring.Read(PeerLink("prefill-1"), [(0, num_bytes)] * 2, outcomes.append))
    await turns()

    assert outcomes == [f"{2 * num_bytes} bytes of pages exceed a slot ({MAX_DATA_BYTES})"]
    assert not r.agent.reads
    assert r.ring.num_free_slots == NUM_SLOTS


@pytest.mark.parametrize("field", ["payload", "size"])
def test_a_frame_that_names_no_whole_pages_is_refused(field: str) -> None:
    async def scenario() -> None:
        r = Reading()
        frame = handoff_pb2.PrefillFrame(blocks={"layer": 0, "num_blocks": 2})
        if field == "size":
            PoolRefSender("nixl", r.blocks, []).pack(frame, [1])

        r.receiver.fetch(frame.blocks, r.delivered.append)

        (error,) = r.delivered
        assert isinstance(error, BadBlocks)
        assert error.cause == field

    run_virtual(scenario())

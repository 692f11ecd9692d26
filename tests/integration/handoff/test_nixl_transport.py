"""NIXL itself, between two real processes: what it does when the peer or the block is not there."""

import asyncio
from pathlib import Path

import psutil
import pytest

from baton.handoff.block_bytes import MAX_DATA_BYTES
from baton.handoff.ticket import BadBlocks
from baton.handoff.transport import HostPages
from baton.handoff.transports.nixl import NUM_SLOTS, NixlReceiver
from baton.wire.v1 import handoff_pb2
from bench.handoff.handoff import BenchOptions, Peer, running_peer
from bench.handoff.handoff_pair import SPEC, Pool, source_bytes
from tests import needs

pytestmark = needs.nixl

NUM_BLOCKS = 4


async def fetch(end: NixlReceiver, *block_ids: int) -> HostPages | BadBlocks:
    """The pages of layer 1 of these blocks of the peer's."""
    frame = handoff_pb2.Blocks(layer=1, num_blocks=len(block_ids))
    frame.pool_ref.block_ids.extend(block_ids)
    frame.pool_ref.num_bytes = len(block_ids) * SPEC.layers[1].page_bytes(SPEC.block_size)
    fetched: asyncio.Future[HostPages | BadBlocks] = asyncio.get_running_loop().create_future()
    end.fetch(frame, fetched.set_result)
    async with asyncio.timeout(60):
        return await fetched


async def test_pages_are_read_and_a_missing_block_or_peer_is_told(tmp_path: Path) -> None:
    pool = Pool(NUM_BLOCKS)
    transports = pool.transports(("nixl", "grpc"), tmp_path, is_sender=False)
    with running_peer(tmp_path, BenchOptions(num_blocks=NUM_BLOCKS), "nixl") as ports:
        end = await connected(Peer(pool, transports, ports))
        pages = await fetch(end, 3, 0)
        assert isinstance(pages, HostPages)
        source = memoryview(source_bytes(NUM_BLOCKS))
        for (start, stop), at in zip(
            [SPEC.page_range(block_id, 1) for block_id in (3, 0)],
            pages.addresses.starts,
            strict=True,
        ):
            assert pages.addresses.memory[at : at + stop - start] == source[start:stop]
        pages.release()

        missing = await fetch(end, NUM_BLOCKS)
        assert isinstance(missing, BadBlocks)

        (peer,) = psutil.Process().children()
        peer.kill()
        await asyncio.to_thread(psutil.wait_procs, [peer], 60)
        lost = await fetch(end, 1)
        assert isinstance(lost, BadBlocks)
        assert lost.cause == "transport"
        end.close()
        assert end._ring.reads.num_free_slots == NUM_SLOTS


async def test_the_slot_of_a_read_that_was_given_up_is_not_used_before_its_bytes_have_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp,self")  # the peer has to take part in each read
    pool = Pool(NUM_BLOCKS)
    transports = pool.transports(("nixl", "grpc"), tmp_path, is_sender=False)
    with running_peer(tmp_path, BenchOptions(num_blocks=NUM_BLOCKS), "nixl") as ports:
        end = await connected(Peer(pool, transports, ports))
        ring = end._ring
        first = await fetch(end, 0)
        assert isinstance(first, HostPages)
        first.release()
        (peer,) = psutil.Process().children()
        peer.suspend()
        async with asyncio.timeout(60):
            while peer.status() != psutil.STATUS_STOPPED:
                await asyncio.sleep(0.001)
        frame = handoff_pb2.Blocks(layer=1, num_blocks=1)
        frame.pool_ref.block_ids.append(2)
        frame.pool_ref.num_bytes = SPEC.layers[1].page_bytes(SPEC.block_size)
        outcomes: list[HostPages | BadBlocks] = []
        end.fetch(frame, outcomes.append)
        (read,) = ring.reads._active
        slot = ring.memory[read.slot * MAX_DATA_BYTES :][: frame.pool_ref.num_bytes]
        slot[:] = bytes(len(slot))

        end.close()
        ring.reads.poll()

        assert [type(outcome) for outcome in outcomes] == [BadBlocks]
        assert not any(slot)
        assert ring.reads.num_free_slots == NUM_SLOTS - 1
        peer.resume()
        async with asyncio.timeout(60):
            while ring.reads.num_free_slots < NUM_SLOTS:
                await asyncio.sleep(0.01)
        start, stop = SPEC.page_range(2, 1)
        assert slot == memoryview(source_bytes(NUM_BLOCKS))[start:stop], "late, where it may"


async def connected(peer: Peer) -> NixlReceiver:
    """The receiving end after the hellos."""
    hello, stream = handoff_pb2.DecodeHello(worker_id="bench"), peer.dial()
    with peer.transports.offer(hello) as offer:
        await stream.write(handoff_pb2.DecodeFrame(hello=hello))
        end = offer.connect((await stream.read()).hello)
    assert isinstance(end, NixlReceiver)
    await stream.disconnect()
    return end

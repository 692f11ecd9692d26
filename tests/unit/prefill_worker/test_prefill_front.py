"""The prefill worker's front: which peers it works with, and how long it keeps what for them."""

import asyncio
from typing import Any

import pytest

from baton.engine.protocol.client import CoreDied
from baton.engine.protocol.messages import Abort, AddSequence, Release, Started
from baton.handoff.ticket import LEASE_S, SWEEP_INTERVAL_S
from baton.testing.virtual_clock import virtual
from baton.wire.kv_spec import KVSpec, to_wire
from baton.wire.protocol import PROTOCOL_VERSION
from baton.worker import instruments
from baton.worker.core_watch import TICK_S
from services.prefill_worker.front import MAX_SESSIONS
from services.prefill_worker.open_transfers import MAX_TRANSFERS
from tests.unit.prefill_worker.conftest import CAPABILITY, NUM_BLOCKS, Peer, Worker, worker
from tests.unit.worker.scripted_core import BLOCK_SIZE, MODEL_FP, SPEC

OTHER_SPEC = to_wire(KVSpec.of_layers(BLOCK_SIZE, [(1, 4, 2, "float32")] * 3))


async def started(w: Worker, peer: Peer, xfer_id: int = 1) -> AddSequence:
    """A transfer that the core computes now."""
    await peer.prefill(xfer_id)
    add = await w.core.next(AddSequence)
    w.core.tell(started=[Started(add.seq_id, list(range(NUM_BLOCKS)), 0, NUM_BLOCKS)])
    assert (await peer.read()).accepted.xfer_id == xfer_id
    return add


# Hellos.


@virtual
async def test_the_answer_to_a_hello_names_the_worker_its_model_and_the_transport() -> None:
    async with worker() as w:
        num_links = instruments.HANDOFF_LINKS.labels("grpc")._value.get()
        hello = await w.connect().hello()
        assert (hello.protocol, hello.worker_id) == (PROTOCOL_VERSION, "p1")
        assert (hello.boot_epoch, hello.model_fp) == (w.deps.boot_epoch, MODEL_FP)
        assert (hello.kv_spec, hello.tp_size, hello.transport) == (to_wire(SPEC), 1, "grpc")
        assert instruments.HANDOFF_LINKS.labels("grpc")._value.get() == num_links + 1


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"protocol": 0}, "protocol 0 of d1 is older than"),
        ({"model_fp": "other"}, f"model_fp other of d1 != {MODEL_FP} here"),
        ({"kv_spec": OTHER_SPEC}, "kv_spec of d1: row_bytes 288 != 192 here"),
        ({"tp_size": 2}, "tp_size 2 != 1 here"),
        ({"transports": ["smoke", "mirrors"]}, "grpc here, smoke, mirrors there"),
        ({"transports": []}, "grpc here, none there"),
    ],
)
@virtual
async def test_a_peer_that_cannot_work_with_us_is_told_the_difference(
    fields: dict[str, Any], cause: str
) -> None:
    async with worker() as w:
        peer = w.connect()
        failure = (await peer.hello(**fields)).failure
        assert failure.reason == "incompatible"
        assert cause in failure.message
        assert await peer.has_ended()


@pytest.mark.parametrize("tp_size", [0, 1])
@virtual
async def test_a_peer_that_computes_on_one_device_is_served(tp_size: int) -> None:
    async with worker() as w:
        await w.peer(tp_size=tp_size)


@virtual
async def test_so_many_peers_are_served_and_one_more_when_one_has_left() -> None:
    async with worker() as w:
        peers = [await w.peer(worker_id=f"d{number}") for number in range(MAX_SESSIONS)]
        refused = w.connect()
        assert (await refused.hello()).failure.reason == "overloaded"
        assert await refused.has_ended()
        await peers[0].say(bye={})
        assert await peers[0].has_ended()
        await w.peer()


@virtual
async def test_a_stream_that_begins_with_something_else_is_closed() -> None:
    async with worker() as w:
        peer = w.connect()
        await peer.say(credit={"bytes": 1})
        assert await peer.has_ended()


# Leases.


@virtual
async def test_a_transfer_that_nobody_renews_is_freed_and_the_peer_told() -> None:
    async with worker() as w:
        peer = await w.peer()
        add = await started(w, peer)
        abort = (await peer.read()).abort
        assert LEASE_S <= w.clock.now() <= LEASE_S + 2 * SWEEP_INTERVAL_S
        assert (abort.xfer_id, abort.capability) == (1, CAPABILITY)
        assert abort.failure.reason == "handoff_failed"
        assert (await w.core.next(Abort)).seq_id == add.seq_id
        assert w.front.num_transfers == 0


@virtual
async def test_a_renewed_transfer_is_kept_and_its_neighbour_is_not() -> None:
    async with worker() as w:
        peer = await w.peer()
        await started(w, peer, 1)
        await started(w, peer, 2)
        await asyncio.sleep(LEASE_S - 1)
        await peer.say(renew={"xfer_ids": [2, 77]})
        assert (await peer.read()).abort.xfer_id == 1
        assert w.front.num_transfers == 1
        assert (await peer.read()).abort.xfer_id == 2
        assert w.clock.now() >= 2 * LEASE_S - 1


@virtual
async def test_a_peer_that_leaves_frees_all_its_transfers_and_no_other() -> None:
    async with worker() as w:
        leaving, staying = await w.peer(worker_id="d1"), await w.peer(worker_id="d2")
        first = await started(w, leaving, 1)
        await started(w, staying, 1)
        await leaving.stream.close()
        assert (await w.core.next(Abort)).seq_id == first.seq_id
        assert await leaving.has_ended()
        assert w.front.num_transfers == 1
        w.front.check_integrity()
        assert list(w.front.violations()) == []


@virtual
async def test_so_many_transfers_are_taken_and_one_more_is_overload() -> None:
    async with worker() as w:
        peer = await w.peer()
        for xfer_id in range(1, MAX_TRANSFERS + 2):
            await peer.prefill(xfer_id)
        refused = (await peer.read()).refused
        assert (refused.xfer_id, refused.failure.reason) == (MAX_TRANSFERS + 1, "overloaded")
        assert w.front.num_transfers == MAX_TRANSFERS


# Ends.


@virtual
async def test_a_stalled_core_fails_what_it_computes_and_refuses_what_comes() -> None:
    async with worker() as w:
        peer = await w.peer()
        add = await started(w, peer)
        w.core.is_stuck = True
        failure = (await peer.read()).abort.failure
        assert (failure.reason, w.clock.now() < LEASE_S) == ("handoff_failed", True)
        assert "stands still" in failure.message
        assert (await w.core.next(Abort)).seq_id == add.seq_id
        await peer.prefill(2)
        assert "has not moved" in (await peer.read()).refused.failure.message
        w.core.is_stuck = False
        await asyncio.sleep(2 * TICK_S)
        await started(w, peer, 3)


@virtual
async def test_a_dead_core_fails_what_is_open_and_names_those_that_ran_then() -> None:
    told: dict[int, bool] = {}
    byes: list[str] = []
    with pytest.raises(BaseExceptionGroup) as raised:
        async with worker() as w:
            peer, idle = await w.peer(worker_id="d1"), await w.peer(worker_id="d2")
            for xfer_id in (1, 2):
                await started(w, peer, xfer_id)
            w.core.die("r2")
            for _ in range(2):
                abort = (await peer.read()).abort
                assert abort.failure.reason == "handoff_failed"
                told[abort.xfer_id] = abort.failure.is_suspect
            for each in (peer, idle):
                byes.append((await each.read()).bye.reason)
                await each.stream.close()
            await asyncio.Event().wait()
    assert told == {1: False, 2: True}
    assert byes == ["core died", "core died"]
    assert raised.value.subgroup(CoreDied) is not None
    assert raised.value.subgroup(AssertionError) is None


@virtual
async def test_a_drain_lets_transfers_end_and_takes_nothing_new() -> None:
    async with worker() as w:
        peer = await w.peer()
        add = await started(w, peer)
        draining = w.tasks.create_task(w.front.drain(30.0))
        await peer.prefill(2)
        assert (await peer.read()).refused.failure.reason == "draining"
        assert w.deps.reports.draining
        w.core.tell_token(add.seq_id, 11)
        while (await peer.read()).WhichOneof("frame") != "commit":
            assert not draining.done()
        await peer.say(done={"xfer_id": 1, "capability": CAPABILITY})
        assert (await w.core.next(Release)).seq_id == add.seq_id
        assert (await peer.read()).bye.reason == "draining"
        await peer.stream.close()
        await draining
        assert w.clock.now() < 1


@virtual
async def test_a_drain_ends_at_its_cap() -> None:
    async with worker() as w:
        peer = await w.peer()
        add = await started(w, peer)
        draining = w.tasks.create_task(w.front.drain(3.0))
        assert (await peer.read()).bye.reason == "draining"
        assert w.clock.now() == pytest.approx(3.0)
        await peer.stream.close()
        await draining
        assert (await w.core.next(Abort)).seq_id == add.seq_id


# Audit.


@virtual
async def test_what_belongs_to_nobody_is_told() -> None:
    async with worker() as w:
        peer = await w.peer()
        await started(w, peer)
        assert list(w.front.violations()) == []
        stray = w.deps.dispatcher.open(None, "r-stray")  # type: ignore[arg-type]
        (session,), (transfer,) = w.front._sessions, w.front._transfers
        leases = w.front._transfers._lease_ends
        end_s = leases.pop(transfer)
        del w.front._sessions[session]
        told = {(each.check, each.request_id) for each in w.front.violations()}
        assert told == {
            *(("sequence_without_transfer", "r-stray"), ("transfer_without_lease", "r1")),
            ("lease_without_owner", "r1"),
        }
        w.deps.dispatcher.forget(stray)
        leases[transfer] = end_s
        w.front._sessions[session] = None

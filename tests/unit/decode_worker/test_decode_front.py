"""The decode worker's front: which gateways it takes, and what it does when it must stop."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from baton.engine.protocol.client import CoreDied
from baton.engine.protocol.messages import Abort, AddSequence, Finished, Started
from baton.testing.memory_stream import memory_stream_pair
from baton.testing.virtual_clock import VirtualClock, virtual
from baton.wire.protocol import PROTOCOL_VERSION
from baton.wire.v1 import router_pb2
from baton.worker.core_watch import TICK_S
from services.decode_worker.front import DecodeFront
from services.decode_worker.gateways import MAX_ATTEMPTS, MAX_SESSIONS
from tests.unit.decode_worker.conftest import Gateway, worker
from tests.unit.worker.scripted_core import MODEL_FP, ScriptedCore, scripted_parts, turns


@virtual
async def test_the_answer_to_a_hello_names_the_worker_its_life_and_its_model() -> None:
    async with worker() as w:
        hello = await w.connect().hello()
        assert (hello.protocol, hello.worker_id) == (PROTOCOL_VERSION, "w1")
        assert (hello.boot_epoch, hello.model_fp) == (w.deps.boot_epoch, MODEL_FP)
        assert list(hello.suspect_request_ids) == []
        assert hello.num_received == 0


@virtual
async def test_a_worker_whose_last_core_died_names_the_suspects_in_its_hello() -> None:
    deps = scripted_parts(ScriptedCore(), VirtualClock(), router_pb2.WORKER_ROLE_DECODE)
    front = DecodeFront(replace(deps, last_suspects=("r7", "r8")), None)  # type: ignore[arg-type]
    ours, theirs = memory_stream_pair()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(front.serve(theirs))
        hello = await Gateway(ours).hello()
        await front.drain(0.0)
    assert list(hello.suspect_request_ids) == ["r7", "r8"]


@virtual
async def test_a_connection_that_begins_with_something_else_is_closed() -> None:
    async with worker() as w:
        gateway = w.connect()
        await gateway.say(cancel={"request_id": "r1"})
        assert await gateway.has_ended()


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"protocol": 0}, "protocol 0 of g1 is older"),
        ({"num_received": 0}, "there is nothing to resume"),
    ],
)
@virtual
async def test_a_hello_that_cannot_be_served_gets_an_answer_and_a_bye_that_says_why(
    fields: dict[str, Any], cause: str
) -> None:
    async with worker() as w:
        gateway = w.connect()
        hello = await gateway.hello(**fields)
        assert not hello.HasField("num_received")
        assert cause in (await gateway.read()).bye.reason
        assert await gateway.has_ended()


@virtual
async def test_so_many_gateways_are_served_and_one_more_when_one_has_left() -> None:
    async with worker() as w:
        gateways = [await w.gateway(f"g{number}") for number in range(MAX_SESSIONS)]
        refused = w.connect()
        assert not (await refused.hello("one more")).HasField("num_received")
        assert "256 gateways" in (await refused.read()).bye.reason
        await gateways[0].say(bye={})
        assert await gateways[0].has_ended()
        assert (await w.connect().hello("one more")).HasField("num_received")


@virtual
async def test_links_of_one_gateway_have_their_own_requests() -> None:
    async with worker() as w:
        first, second = w.connect(), w.connect()
        await first.hello(link=1)
        await second.hello(link=2)
        for gateway in (first, second):
            await gateway.submit(handle=1)
            await w.core.next(AddSequence)
        assert w.front.num_attempts == 2


@virtual
async def test_a_link_that_begins_anew_drops_what_its_gateway_had_asked_for() -> None:
    async with worker() as w:
        first = await w.gateway()
        await first.submit()
        add = await w.core.next(AddSequence)
        again = await w.gateway()
        assert (await w.core.next(Abort)).seq_id == add.seq_id
        assert await first.has_ended()
        await again.submit()
        assert (await w.core.next(AddSequence)).request_id == "r1"


@virtual
async def test_a_stalled_core_fails_what_runs_and_refuses_what_comes_until_it_moves() -> None:
    async with worker() as w:
        gateway = await w.gateway()
        await gateway.submit(handle=1)
        await w.core.next(AddSequence)
        w.core.is_stuck = True
        refused = (await gateway.read()).refused
        assert (refused.handle, refused.failure.reason) == (1, "worker_lost")
        assert w.front.num_attempts == 0
        await gateway.submit(handle=2)
        assert "has not moved" in (await gateway.read()).refused.failure.message
        w.core.is_stuck = False
        await asyncio.sleep(2 * TICK_S)
        await gateway.submit(handle=3)
        assert (await w.core.next(AddSequence)).request_id == "r3"


@virtual
async def test_every_gateway_hears_of_a_dead_core_with_its_suspects_and_then_bye() -> None:
    told: list[list[str]] = []
    with pytest.raises(BaseExceptionGroup) as raised:
        async with worker() as w:
            idle, busy = await w.gateway("g1"), await w.gateway("g2")
            await busy.submit()
            await w.core.next(AddSequence)
            w.core.die("r1", "r9")
            for gateway, num_frames in ((idle, 2), (busy, 3)):
                frames = [await gateway.read() for _ in range(num_frames)]
                told.append([frame.WhichOneof("frame") for frame in frames])
                assert list(frames[0].core_died.suspect_request_ids) == ["r1", "r9"]
                assert frames[-1].bye.reason == "core died"
            for gateway in (idle, busy):
                await gateway.stream.close()
            await asyncio.Event().wait()
    assert told == [["core_died", "bye"], ["core_died", "refused", "bye"]]
    assert raised.value.subgroup(CoreDied) is not None
    assert raised.value.subgroup(AssertionError) is None


@virtual
async def test_a_drain_lets_what_runs_end_and_takes_nothing_new() -> None:
    async with worker() as w:
        gateway = await w.gateway()
        await gateway.submit(handle=1)
        add = await w.core.next(AddSequence)
        draining = w.tasks.create_task(w.front.drain(30.0))
        assert (await gateway.read()).go_away.deadline_ms == 30_000
        assert w.deps.reports.draining
        await gateway.submit(handle=2)
        refused = (await gateway.read()).refused
        assert (refused.handle, refused.failure.reason) == (2, "draining")
        assert not draining.done()
        w.core.tell(finished=[Finished(add.seq_id, "stop", 0)])
        step = (await gateway.read()).step
        assert (step.step, step.side[0].finish.reason) == (1, "stop")
        assert (await gateway.read()).bye.reason == "draining"
        await gateway.stream.close()
        await draining
        assert w.clock.now() < 1


@virtual
async def test_in_a_drain_each_gateway_gets_frames_numbered_for_its_own_link() -> None:
    async with worker() as w:
        idle, busy = await w.gateway("g1"), await w.gateway("g2")
        await busy.submit()
        add = await w.core.next(AddSequence)
        w.core.tell(started=[Started(add.seq_id, [], 0, 1)])
        w.core.tell_token(add.seq_id, 7)
        assert (await busy.read()).seq == 1
        draining = w.tasks.create_task(w.front.drain(30.0))
        await turns()
        w.core.tell(finished=[Finished(add.seq_id, "stop", 1)])
        for gateway, expected in (
            (idle, [(1, "go_away"), (0, "bye")]),
            (busy, [(2, "go_away"), (3, "step"), (0, "bye")]),
        ):
            frames = [await gateway.read() for _ in expected]
            assert [(frame.seq, frame.WhichOneof("frame")) for frame in frames] == expected
            await gateway.stream.close()
        await draining
        assert w.clock.now() < 1


@virtual
async def test_a_drain_that_takes_too_long_fails_what_still_runs() -> None:
    async with worker() as w:
        gateway = await w.gateway()
        await gateway.submit(handle=1)
        await w.core.next(AddSequence)
        draining = w.tasks.create_task(w.front.drain(3.0))
        assert (await gateway.read()).HasField("go_away")
        refused = (await gateway.read()).refused
        assert w.clock.now() == pytest.approx(3.0)
        assert refused.failure.reason == "draining"
        assert (await gateway.read()).bye.reason == "draining"
        await gateway.stream.close()
        await draining


@virtual
async def test_a_full_worker_refuses_one_attempt_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.decode_worker.gateways.MAX_ATTEMPTS", 3)
    assert MAX_ATTEMPTS > 3
    async with worker() as w:
        gateway = await w.gateway()
        for handle in range(4):
            await gateway.submit(handle)
        refused = (await gateway.read()).refused
        assert (refused.handle, refused.failure.reason) == (3, "overloaded")


@virtual
async def test_sequences_and_attempts_without_each_other_are_told() -> None:
    async with worker() as w:
        gateway = await w.gateway()
        await gateway.submit(handle=1)
        add = await w.core.next(AddSequence)
        assert list(w.front.violations()) == []
        stray = w.deps.dispatcher.open(None, "r-stray")  # type: ignore[arg-type]
        w.deps.dispatcher.forget(add.seq_id)
        told = {(each.check, each.request_id) for each in w.front.violations()}
        assert told == {
            *(("sequence_without_attempt", "r-stray"), ("attempt_without_sequence", "r1"))
        }
        w.deps.dispatcher.forget(stray)

"""What a decode worker's front makes of a core's steps: frames for a gateway, commands, phases."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client import REGISTRY

from baton.engine.protocol.messages import (
    Abort,
    AddSequence,
    Admitted,
    Bound,
    Finished,
    Start,
    Started,
)
from baton.testing.memory_stream import memory_stream_pair
from baton.testing.virtual_clock import run_virtual
from baton.wire.v1 import router_pb2
from services.decode_worker.front import DecodeFront
from tests.simulation.workers.fleet import FakeGateway
from tests.unit.decode_worker.fake_prefill_worker import (
    BOUND,
    ENDPOINT,
    NUM_TOKENS,
    FakePrefillWorker,
)
from tests.unit.worker.scripted_core import ScriptedCore, make_worker, turns

PROMPT = range(NUM_TOKENS)


class World:
    """A front between one gateway, one prefill worker and a core that the test speaks for."""

    def __init__(self, core: ScriptedCore, gateway: FakeGateway, peer: FakePrefillWorker) -> None:
        self.core = core
        self.gateway = gateway
        self.peer = peer

    async def submit(self, **fields: Any) -> Any:
        answer = await self.gateway.submit(PROMPT, **fields)
        await turns()
        return answer

    @property
    def added(self) -> list[AddSequence]:
        return [command for command in self.core.sent if isinstance(command, AddSequence)]

    async def tell_tokens(self, *seq_ids: int, index: int = 0, **columns: Any) -> None:
        await self.core.step(
            token_seq_ids=list(seq_ids),
            token_ids=[100 + seq_id for seq_id in seq_ids],
            token_indexes=[index] * len(seq_ids),
            **columns,
        )

    async def hand_over_first_tokens(self, num_choices: int) -> Any:
        """Up to the bound blocks and the first tokens, of a submit that was just added."""
        await self.core.step(admitted=[Admitted(self.added[-1].seq_id, 0)])
        request = await self.peer.next("prefill")
        await self.peer.accept(request)
        await turns()
        await self.core.step(bound=[Bound(self.added[-1].seq_id, BOUND, len(BOUND))])
        forks = [{"token_id": 8}] * (num_choices - 1)
        await self.peer.tell_first(request, forks=forks)
        await turns()
        return request


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    core, deps = make_worker("decode-1", router_pb2.WORKER_ROLE_DECODE)
    peer = FakePrefillWorker()
    front = DecodeFront(deps, peer.dial)
    ours, theirs = memory_stream_pair()
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(front.run()), tasks.create_task(front.serve(theirs))]
        gateway = FakeGateway(ours, "gateway-1")
        await gateway.hello()
        running.append(tasks.create_task(gateway.run()))
        yield World(core, gateway, peer)
        await front.drain(0.0)
        front.check_integrity()
        for task in running:
            task.cancel()


def num_cancels(phase: str) -> float:
    return REGISTRY.get_sample_value("baton_cancel_seconds_count", {"phase": phase}) or 0.0


def test_tokens_of_one_step_leave_as_one_frame() -> None:
    async def scenario() -> None:
        async with world() as w:
            answers = [await w.submit(prefill_endpoint="") for _ in range(4)]
            seq_ids = [added.seq_id for added in w.added]
            await w.core.step(started=[Started(seq_id, [], 0, 1) for seq_id in seq_ids])
            num_frames = w.gateway.num_received
            await w.tell_tokens(*seq_ids)
            assert w.gateway.num_received == num_frames + 1
            assert [list(answer.tokens) for answer in answers] == [[0]] * 4

    run_virtual(scenario())


def test_the_first_tokens_of_a_handoff_do_not_wait_for_a_step() -> None:
    async def scenario() -> None:
        async with world() as w:
            answer = await w.submit(prefill_endpoint=ENDPOINT, num_choices=2)
            await w.hand_over_first_tokens(2)
            assert answer.tokens == {0: [7], 1: [8]}
            assert answer.prefills[0].num_blocks_received == 3

    run_virtual(scenario())


def test_decoding_starts_when_every_block_is_here() -> None:
    async def scenario() -> None:
        async with world() as w:
            await w.submit(prefill_endpoint=ENDPOINT, num_choices=2)
            request = await w.hand_over_first_tokens(2)
            assert "Start" not in w.core.kinds()
            await w.peer.send_blocks(request)
            await turns()
            (added,) = w.added
            assert w.core.sent[-1] == Start(added.seq_id, 7, ((added.forks[0].seq_id, 8),))

    run_virtual(scenario())


def test_a_leader_that_is_cancelled_goes_on_until_its_forks_have_their_prompt() -> None:
    async def scenario() -> None:
        async with world() as w:
            answer = await w.submit(prefill_endpoint=ENDPOINT, num_choices=2)
            request = await w.hand_over_first_tokens(2)
            await w.gateway.cancel_choices(answer.handle, 0)
            await turns()
            assert not answer.finishes
            await w.peer.send_blocks(request)
            await turns()
            assert answer.finishes[0].reason == "cancelled"
            (added,) = w.added
            assert w.core.sent[-1] == Abort(added.seq_id)
            await w.tell_tokens(added.forks[0].seq_id, index=1)
            assert answer.tokens[1][0] == 8
            assert len(answer.tokens[1]) == 2

    run_virtual(scenario())


def test_a_leader_that_nobody_else_needs_is_cancelled_at_once() -> None:
    async def scenario() -> None:
        async with world() as w:
            answer = await w.submit(prefill_endpoint=ENDPOINT, num_choices=2)
            await w.hand_over_first_tokens(2)
            await w.gateway.cancel_choices(answer.handle, 1, 0)
            await turns()
            assert {finish.reason for finish in answer.finishes.values()} == {"cancelled"}
            assert w.peer.kinds() == ["prefill", "abort"]

    run_virtual(scenario())


@pytest.mark.parametrize("is_handed_over", [True, False])
def test_a_cancelled_fork_is_counted_in_its_own_phase(is_handed_over: bool) -> None:
    """When its leader has ended already."""

    async def scenario() -> None:
        async with world() as w:
            endpoint = ENDPOINT if is_handed_over else ""
            answer = await w.submit(prefill_endpoint=endpoint, num_choices=2)
            (added,) = w.added
            seq_ids = [added.seq_id, added.forks[0].seq_id]
            if is_handed_over:
                await w.peer.send_blocks(await w.hand_over_first_tokens(2))
                await turns()
            else:
                await w.core.step(started=[Started(added.seq_id, [], 0, 1)])
                await w.tell_tokens(*seq_ids)
            await w.tell_tokens(*seq_ids, index=1, finished=[Finished(added.seq_id, "stop", 2)])
            before = num_cancels("decode")
            await w.gateway.cancel("request-1")
            await turns()
            await w.core.step(freed=[seq_ids[1]])
            assert answer.finishes[1].reason == "cancelled"
            assert num_cancels("decode") == before + 1

    run_virtual(scenario())


def test_a_finish_leaves_with_the_last_tokens() -> None:
    async def scenario() -> None:
        async with world() as w:
            answer = await w.submit(prefill_endpoint="")
            (added,) = w.added
            await w.core.step(started=[Started(added.seq_id, [], 0, 1)])
            num_frames = w.gateway.num_received
            finished = [Finished(added.seq_id, "stop", 1)]
            await w.tell_tokens(added.seq_id, finished=finished)
            assert w.gateway.num_received == num_frames + 1
            assert answer.finishes[0].reason == "stop"
            stages = [stage.name for stage in answer.finishes[0].stages]
            assert stages == ["prefill.queue", "prefill.compute", "decode"]

    run_virtual(scenario())

"""A gateway's stream breaks: its attempts wait for it, and nothing is computed or told twice."""

import asyncio
import os
import random

import pytest

from baton.runtime.shared_stream import FINISH_TIMEOUT_S
from baton.testing.memory_stream import MemoryStream
from baton.testing.virtual_clock import virtual
from baton.wire.v1 import worker_pb2
from services.decode_worker.gateway_link import MAX_NOTICES, RESUME_GRACE_S
from tests.simulation.workers.fleet import STEP_S, FakeGateway, Fleet, fleet

PROMPT = list(range(100, 150))
SEEDED = {"temperature": 0.8, "seed": 1}
NUM_SEEDS = 200 if os.environ.get("BATON_TEST_LONG") else 20


async def reconnect(f: Fleet, gateway: FakeGateway) -> worker_pb2.WorkerHello:
    """What the worker answers to the hello of another connection, which then is served."""
    hello = await gateway.resume(f.dial_decode())
    if hello.HasField("num_received"):
        f.tasks.create_task(gateway.run())
    return hello


@virtual
async def test_tokens_of_an_outage_arrive_once_after_it() -> None:
    async with fleet() as f:
        answer = await f.gateway.submit(PROMPT, max_tokens=100, **SEEDED)
        await answer.first_token()
        f.gateway.stream.cancel()
        await asyncio.sleep(RESUME_GRACE_S / 2)
        assert len(answer.tokens[0]) < 100
        assert (await reconnect(f, f.gateway)).HasField("num_received")
        await answer.over()
        assert answer.tokens[0] == f.lone_run(PROMPT, 100, **SEEDED)
        assert len(f.kinds("prefill")) == 1
        await f.settle(1)


@virtual
async def test_a_parked_attempt_goes_no_further_than_its_credit() -> None:
    async with fleet() as f:
        answer = await f.gateway.submit(PROMPT, max_tokens=500, initial_credit_tokens=20)
        await answer.first_token()
        f.gateway.stream.cancel()
        await asyncio.sleep(RESUME_GRACE_S * 0.9)
        assert f.decode.num_used_blocks, "it is parked, not freed"
        await reconnect(f, f.gateway)
        await asyncio.sleep(10 * STEP_S)
        assert len(answer.tokens[0]) == 20
        await f.gateway.credit(answer.handle, 0, 30)
        await asyncio.sleep(20 * STEP_S)
        assert answer.tokens[0] == f.lone_run(PROMPT, 30)
        await f.gateway.cancel("request-1")
        await f.settle(1)


@virtual
async def test_a_finish_that_was_lost_on_its_way_is_told_again() -> None:
    async with fleet() as f:
        answer = await f.gateway.submit(PROMPT, num_choices=2, num_logprobs=1, **SEEDED)
        await answer.first_token()
        f.gateway.stream.cancel()
        await asyncio.sleep(1)  # it ends meanwhile, and holds nothing any more
        assert f.decode.front.num_attempts == 0
        assert f.decode.num_used_blocks == 0
        await reconnect(f, f.gateway)
        await answer.over()
        for choice in range(2):
            assert answer.tokens[choice] == f.lone_run(PROMPT, choice=choice, **SEEDED)
            assert [told.index for told in answer.logprobs[choice]] == list(range(8))
        assert list(answer.prefills) == [0]
        await f.settle(1)


@virtual
async def test_a_link_that_could_not_keep_a_notice_is_not_resumed() -> None:
    async with fleet() as f:
        answer = await f.gateway.submit(PROMPT, max_tokens=500)
        await answer.first_token()
        (session,) = f.decode.front._gateways._sessions.values()
        for _ in range(MAX_NOTICES + 1):
            session.link.send(worker_pb2.WorkerFrame(go_away={}))
        await f.gateway.has_ended.wait()
        assert not (await reconnect(f, f.gateway)).HasField("num_received")
        await asyncio.sleep(RESUME_GRACE_S)
        await f.settle(1)


@virtual
async def test_a_gateway_that_does_not_come_back_is_freed_after_two_seconds() -> None:
    async with fleet() as f:
        gateway = await f.connect()
        answer = await gateway.submit(PROMPT, max_tokens=500, initial_credit_tokens=20)
        await answer.first_token()
        gateway.stream.cancel()
        await asyncio.sleep(RESUME_GRACE_S - 0.1)
        assert f.decode.num_used_blocks
        await f.settle(0.2)
        assert not (await reconnect(f, gateway)).HasField("num_received")


@virtual
async def test_a_gateway_that_leaves_in_the_middle_of_a_handoff_frees_both_sides() -> None:
    async with fleet() as f:
        f.delay_s = lambda frame: 3.0 if frame.HasField("blocks") else 0.0
        gateway = await f.connect()
        answer = await gateway.submit(PROMPT)
        await answer.first_token()
        gateway.stream.cancel()
        await f.settle(RESUME_GRACE_S + 0.5)


@virtual
async def test_a_new_connection_takes_over_from_one_whose_loss_was_not_noticed() -> None:
    async with fleet() as f:
        answer = await f.gateway.submit(PROMPT, max_tokens=60, **SEEDED)
        await answer.first_token()
        half_open = f.gateway.stream
        stale = worker_pb2.Cancel(request_id="request-1", epoch=1)
        await reconnect(f, f.gateway)
        # What still came over the old connection was written before the new one was dialled, and
        # would be written again by a gateway that numbers its frames.
        await half_open.write(worker_pb2.GatewayFrame(cancel=stale))
        await answer.over()
        assert answer.tokens[0] == f.lone_run(PROMPT, 60, **SEEDED)
        await f.settle(1)


@virtual
async def test_a_link_that_begins_anew_leaves_nothing_of_what_it_was() -> None:
    async with fleet() as f:
        await (await f.gateway.submit(PROMPT, max_tokens=500)).first_token()
        again = FakeGateway(f.dial_decode(), f.gateway.gateway_id)
        assert (await again.hello()).HasField("num_received")
        f.tasks.create_task(again.run())
        answer = await again.submit(PROMPT, max_tokens=40)
        await answer.over()
        assert answer.tokens[0] == f.lone_run(PROMPT, 40)
        await f.settle(1)


@virtual
async def test_two_gateways_may_use_the_same_request_id_and_any_epoch() -> None:
    async with fleet() as f:
        first = await f.gateway.submit(PROMPT, request_id="r", epoch=7, max_tokens=40)
        other = await f.connect()
        second = await other.submit(PROMPT, request_id="r", epoch=1, max_tokens=40)
        for answer in (first, second):
            await answer.over()
            assert answer.tokens[0] == f.lone_run(PROMPT, 40)
        await f.settle(1)


@virtual
async def test_a_drain_waits_for_a_gateway_that_has_not_got_its_last_tokens() -> None:
    async with fleet() as f:
        answer = await f.gateway.submit(PROMPT, **SEEDED)
        await answer.first_token()
        f.gateway.stream.cancel()
        await asyncio.sleep(0.2)
        assert f.decode.front.num_attempts == 0
        draining = f.tasks.create_task(f.decode.front.drain(10.0))
        await asyncio.sleep(0.2)
        assert (await reconnect(f, f.gateway)).HasField("num_received")
        await answer.over()
        assert answer.tokens[0] == f.lone_run(PROMPT, **SEEDED)
        back_s = asyncio.get_running_loop().time()
        await draining
        assert asyncio.get_running_loop().time() - back_s <= FINISH_TIMEOUT_S


@virtual
async def test_a_drain_ends_what_nobody_came_back_for() -> None:
    async with fleet() as f:
        answer = await f.gateway.submit(PROMPT, max_tokens=500, initial_credit_tokens=20)
        await answer.first_token()
        f.gateway.stream.cancel()
        await asyncio.sleep(0.1)
        await f.decode.front.drain(10.0)
        assert asyncio.get_running_loop().time() < RESUME_GRACE_S + 1
        await f.settle(1)


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_cuts_at_random_places_cost_no_prefill_and_no_token(seed: int) -> None:
    @virtual
    async def scenario() -> None:
        sizes = {"num_blocks": 512}
        async with fleet(decode_sizes=sizes, prefill_sizes=sizes) as f:
            rng = random.Random(seed)
            prompts = [[rng.randrange(900) for _ in range(rng.randrange(1, 99))] for _ in range(6)]
            answers = []
            for prompt in prompts:
                where = {} if rng.random() < 0.7 else {"prefill_endpoint": ""}
                answers.append(
                    await f.gateway.submit(prompt, max_tokens=60, num_logprobs=0, **where, **SEEDED)
                )
            await asyncio.sleep(
                STEP_S
            )  # the gateway does not number its submits: they have arrived
            f.tasks.create_task(cut_now_and_then(f, rng))
            for prompt, answer in zip(prompts, answers, strict=True):
                await answer.over()
                assert answer.tokens[0] == f.lone_run(prompt, 60, **SEEDED)
                assert [told.index for told in answer.logprobs[0]] == list(range(60))
            prefills = [frame.request_id for frame in f.kinds("prefill")]
            assert len(prefills) == len(set(prefills)), "prefilled again"
            await f.settle(1)

    scenario()


async def cut_now_and_then(f: Fleet, rng: random.Random) -> None:
    """Five breaks, noticed by one side or by both, with the way back after up to half a second."""
    for _ in range(5):
        await asyncio.sleep(rng.uniform(0, 0.2))
        old: MemoryStream = f.gateway.stream
        if rng.random() < 0.7:
            old.cancel()
        await asyncio.sleep(rng.uniform(0, 0.5))
        await reconnect(f, f.gateway)

"""A real gateway over real gRPC: a worker that drains, and routers that are gone."""

import asyncio
import contextlib
from pathlib import Path

import httpx
import openai
from prometheus_client import REGISTRY

from baton.wire.failures import Unavailable
from baton.wire.v1 import router_pb2, worker_pb2
from tests.integration.gateway.gateway_stack import Stack, running_stack, until_ready
from tests.unit.gateway.fakes import KEY

TEXT = "The baton is passed on, and never dropped. " * 4
MESSAGES = [{"role": "user", "content": "Go on"}]


def counted(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def begin(stack: Stack) -> None:
    """The gateway is ready and knows both workers."""
    for worker in stack.workers.values():
        worker.texts = [TEXT]
    (model,) = stack.router.models
    del model.workers[:]
    for name, endpoint in stack.endpoints.items():
        role = router_pb2.WORKER_ROLE_DECODE
        model.workers.add(worker_id=name, endpoint=endpoint, role=role, ready=True)
    await until_ready(stack)


async def streamed(stack: Stack, after: int = 0, then: worker_pb2.WorkerFrame | None = None) -> str:
    """The text of one stream; after so many characters, the first worker says `then`."""
    text = ""
    async with openai.AsyncOpenAI(
        base_url=f"{stack.root}/v1", api_key=KEY, max_retries=0
    ) as client:
        stream = await client.chat.completions.create(
            model="demo", messages=MESSAGES, stream=True, max_tokens=300
        )
        async for chunk in stream:
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
            if then is not None and len(text) >= after:
                await stack.worker.say(then)
                then = None
    return text


async def until_its_workers_are_known(stack: Stack) -> None:
    """Wait until the view of `begin` has reached the gateway: it serves without asking a router."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(openai.APIStatusError):
                assert await streamed(stack) == TEXT
                return


async def test_a_stream_leaves_a_worker_that_drains_before_it_would_be_cut(tmp_path: Path) -> None:
    async with running_stack(tmp_path) as stack:
        await begin(stack)
        stack.worker.step_s = 0.05
        moves = counted("baton_gateway_moves_total", reason="draining")
        go_away = worker_pb2.WorkerFrame(go_away={"deadline_ms": 2000})
        assert await streamed(stack, after=10, then=go_away) == TEXT
        assert counted("baton_gateway_moves_total", reason="draining") == moves + 1
        (second,) = stack.workers["w2"].submits
        assert second.epoch == 2
        assert [cancel.epoch for cancel in stack.worker.cancels] == [1]


async def test_streams_begin_although_no_router_answers(tmp_path: Path) -> None:
    async with running_stack(tmp_path) as stack:
        await begin(stack)
        stack.router.failure = Unavailable("this router is stopping")
        await until_its_workers_are_known(stack)
        alone = counted("baton_gateway_lone_picks_total")
        texts = await asyncio.gather(*(streamed(stack) for _ in range(4)))
        assert texts == [TEXT] * 4
        assert counted("baton_gateway_lone_picks_total") == alone + 4
        async with httpx.AsyncClient(timeout=60) as http:
            assert (await http.get(f"{stack.root}/readyz")).status_code == 200

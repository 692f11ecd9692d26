"""A gateway's link to a decode worker over real gRPC, through a proxy that breaks connections."""

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from prometheus_client import Counter

from baton.engine.protocol.messages import SamplingParams
from baton.engine.step.engine import Engine, EngineConfig
from baton.runtime.grpc_channel import open_channel
from baton.runtime.grpc_server import start_server
from baton.system.clock import SystemClock
from baton.testing.engine_driver import encode_tokens
from baton.testing.fake_runner import FakeRunner
from baton.testing.fault_proxy import FaultProxy, OneUpstream
from baton.testing.faults import DIRECTIONS
from baton.testing.local_client import LocalEngineClient
from baton.wire.protocol import PROTOCOL_VERSION
from baton.wire.v1 import router_pb2, sampling_pb2, worker_pb2, worker_pb2_grpc
from baton.worker import instruments as worker_instruments
from baton.worker.program import make_parts
from services.decode_worker import gateway_link
from services.decode_worker.__main__ import DecodeProgram
from services.gateway import instruments as gateway_instruments
from services.gateway.clients.grpc import dial_worker
from services.gateway.workers import worker_connections
from services.gateway.workers.attempt import Finished, Tokens
from services.gateway.workers.migration import EarlyMigration
from services.gateway.workers.worker_link import WorkerLink
from services.gateway.workers.worker_links import WorkerLinks

IS_LONG = bool(os.environ.get("BATON_TEST_LONG"))
NUM_CUTS = 200 if IS_LONG else 6
NUM_BLACK_HOLES = 20 if IS_LONG else 1
MAX_TOKENS = 120
# Of connections that are held for HOLD_S: so many must outlive it, of so many that are tried; where
# both ends wait for a core besides, they are right to give up.
NUM_HELD, MAX_HELD, HOLD_S = 3, 12, 0.5
CREDIT = 32


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long a link is dialled again and waited for is the unit tests' business: here a busy
    machine must not decide."""
    monkeypatch.setattr(worker_connections, "RESUME_WINDOW_S", 20.0)
    monkeypatch.setattr(gateway_link, "RESUME_GRACE_S", 40.0)


def submit_of(
    number: int, prompt: list[int], sampling: sampling_pb2.Sampling, credit: int
) -> worker_pb2.Submit:
    return worker_pb2.Submit(
        request_id=f"request-{number}",
        epoch=1,
        model_fp="fake-model",
        prompt_ids=encode_tokens(prompt),
        num_prompt_tokens=len(prompt),
        cache_key=b"k" * 32,
        sampling=sampling,
        initial_credit_tokens=credit,
    )


@dataclass
class Rig:
    """A worker with a fake model, the proxy before it, and the gateway's links to the proxy."""

    engine: Engine
    front: DecodeProgram
    runner: FakeRunner
    proxy: FaultProxy
    links: WorkerLinks
    num_arrived: int = 0

    @property
    def link(self) -> WorkerLink:
        return self.links.link_to(
            router_pb2.WorkerEndpoint(worker_id="decode-1", endpoint=self.proxy.address)
        )

    async def ask(self, number: int, prompt: list[int]) -> list[int]:
        """The tokens of one request, credited as they come. Raises BatonError."""
        sampling = sampling_pb2.Sampling(
            num_choices=1, max_tokens=MAX_TOKENS, num_logprobs=-1, num_prompt_logprobs=-1
        )
        link = self.link
        attempt = link.submit(submit_of(number, prompt, sampling, credit=CREDIT))
        tokens: list[int] = []
        try:
            while True:
                for event in await attempt.events(30):
                    if isinstance(event, Tokens):
                        tokens += event.ids
                        self.num_arrived += len(event.ids)
                    elif isinstance(event, Finished):
                        return tokens
                attempt.give(0, len(tokens) + CREDIT)
        finally:
            link.forget(attempt)

    def expected(self, prompt: list[int]) -> list[int]:
        return self.runner.lone_run(prompt, SamplingParams(MAX_TOKENS))

    async def under_way(self) -> None:
        """Until tokens come over the link."""
        before = self.num_arrived
        while self.num_arrived == before:
            await asyncio.sleep(0.005)

    @contextlib.asynccontextmanager
    async def struck(self, kind: str) -> AsyncIterator[None]:
        """A fault of the proxy that has met bytes when the body begins, and ends with it."""
        before = self._num_met(kind)
        with self.proxy.fault(**{kind: True}):
            while self._num_met(kind) == before:
                await asyncio.sleep(0.005)
            yield

    def _num_met(self, kind: str) -> int:
        return sum(self.proxy.counts[f"{direction}.{kind}"] for direction in DIRECTIONS)

    async def all_blocks_free(self) -> None:
        async with asyncio.timeout(60):
            while self.engine.measure_load().num_blocks_free < self.engine.info.num_blocks:
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def rig() -> AsyncIterator[Rig]:
    clock, runner = SystemClock(), FakeRunner()
    engine = Engine(EngineConfig("fake-model", "fake", "1", num_blocks=512), runner, clock)
    client = LocalEngineClient(engine, clock, lambda batch: 0.005)
    front = DecodeProgram(
        make_parts(client, worker_id="decode-1", role=router_pb2.WORKER_ROLE_DECODE, clock=clock)
    )
    server = await start_server("127.0.0.1:0", front.register, link=True)
    migration = EarlyMigration(random.Random(1), lambda *_: False, clock)
    links = WorkerLinks(dial_worker, "gateway-1-life", clock, migration)
    async with contextlib.AsyncExitStack() as undo:
        undo.push_async_callback(server.stop, 1.0)
        proxy = undo.enter_context(FaultProxy(OneUpstream("127.0.0.1", server.port)))
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(front.run()), tasks.create_task(links.run())]
            yield Rig(engine, front, runner, proxy, links)
            await links.close_all()
            await front.drain(2.0)
            for task in running:
                task.cancel()


def value(counter: Counter, *labels: str) -> float:
    return float(counter.labels(*labels)._value.get())


async def resumed_times(number: float) -> None:
    """The caller's timeout bounds the wait."""
    while value(gateway_instruments.GATEWAY_LOST_STREAMS, "resumed") < number:
        await asyncio.sleep(0.01)


async def check_streams(r: Rig, breaker: asyncio.Task[None], rng: random.Random) -> None:
    """Eight streams at a time until `breaker` is done: all tokens right, each prompt read once."""
    num_read = value(worker_instruments.PROMPT_TOKENS, "fake", "0")
    num_asked = 0
    numbers = iter(range(1_000_000))

    async def stream() -> None:
        nonlocal num_asked
        while not breaker.done():
            prompt = [rng.randrange(900) for _ in range(rng.randrange(1, 80))]
            num_asked += len(prompt)
            assert await r.ask(next(numbers), prompt) == r.expected(prompt)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(8):
            tasks.create_task(stream())
    assert value(worker_instruments.PROMPT_TOKENS, "fake", "0") - num_read == num_asked, (
        "prefilled again"
    )
    await r.all_blocks_free()


async def test_connection_resets_cost_no_prefill_and_no_token() -> None:
    async with rig() as r, asyncio.timeout(300):
        rng = random.Random(7)
        resumed = value(gateway_instruments.GATEWAY_LOST_STREAMS, "resumed")

        async def cut() -> None:
            for number in range(NUM_CUTS):
                await asyncio.sleep(rng.uniform(0.05, 0.3))
                await r.under_way()
                assert r.proxy.cut(reset=rng.random() < 0.7) >= 1
                await resumed_times(resumed + number + 1)

        await check_streams(r, asyncio.create_task(cut()), rng)
        r.proxy.verify()


async def test_a_connection_that_goes_silent_is_replaced_by_another() -> None:
    async with rig() as r, asyncio.timeout(300):
        rng = random.Random(8)

        async def swallow() -> None:
            for _ in range(NUM_BLACK_HOLES):
                await asyncio.sleep(rng.uniform(0.3, 0.6))
                await r.under_way()
                resumed = value(gateway_instruments.GATEWAY_LOST_STREAMS, "resumed")
                async with r.struck("drop"):
                    pass
                await resumed_times(resumed + 1)

        await check_streams(r, asyncio.create_task(swallow()), rng)
        r.proxy.verify()


async def test_a_connection_that_stands_still_for_half_a_second_is_not_given_up() -> None:
    """Neither end may say so because the other, or itself, had no core to run on."""

    def num_lost() -> float:
        return sum(
            value(gateway_instruments.GATEWAY_LOST_STREAMS, how) for how in ("resumed", "given_up")
        )

    async with rig() as r, asyncio.timeout(200):
        num_outlived = 0

        async def hold() -> None:
            nonlocal num_outlived
            for _ in range(MAX_HELD):
                await r.under_way()
                before = num_lost()
                async with r.struck("hold"):
                    await asyncio.sleep(HOLD_S)
                await r.under_way()
                num_outlived += num_lost() == before
                if num_outlived == NUM_HELD:
                    return

        await check_streams(r, asyncio.create_task(hold()), random.Random(9))
        assert num_outlived == NUM_HELD


async def test_a_gateway_that_reads_nothing_counts_as_lost_after_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway_link, "RESUME_GRACE_S", 0.1)
    async with rig() as r, asyncio.timeout(200):
        expired = value(worker_instruments.DECODE_DISCONNECTED_GATEWAYS, "expired")
        # Without the gateway's own care: on a busy machine it would take the worker for lost.
        channel = open_channel(r.proxy.address, link=True, small_window=True)
        stream: Any = worker_pb2_grpc.DecodeWorkerStub(channel).Serve()
        hello = worker_pb2.GatewayHello(protocol=PROTOCOL_VERSION, gateway_id="deaf", link=1)
        await stream.write(worker_pb2.GatewayFrame(hello=hello))
        sampling = sampling_pb2.Sampling(
            num_choices=16, max_tokens=900, num_logprobs=20, num_prompt_logprobs=-1
        )
        submit = submit_of(1, [1, 2, 3], sampling, credit=900)
        submit.handle = 1
        await stream.write(worker_pb2.GatewayFrame(submit=submit))
        while value(worker_instruments.DECODE_DISCONNECTED_GATEWAYS, "expired") == expired:
            await asyncio.sleep(0.02)
        await r.all_blocks_free()
        await channel.close()

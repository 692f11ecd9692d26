"""The gateway's ports over gRPC: replicas that come, go and never were there."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any

import pytest

from baton.localstack.ports import LOOPBACK, free_ports
from baton.runtime import grpc_channel
from baton.runtime.calls.call_server import CallServer
from baton.runtime.cutoff import Cutoff
from baton.runtime.grpc_server import GrpcServer, start_server, translate_failures
from baton.runtime.shared_stream import ServerFrameStream
from baton.system.clock import SystemClock
from baton.wire.call_methods import ENCODE
from baton.wire.failures import Incompatible, Unavailable
from baton.wire.v1 import router_pb2, tokenizer_pb2, tokenizer_pb2_grpc
from services.gateway.clients.grpc import (
    TOKENIZER_PATIENCE_S,
    GrpcQuota,
    GrpcRouter,
    GrpcTokenizer,
)
from services.gateway.clients.protocols import CallContext
from services.router.settings import Settings as RouterSettings

NOBODY = "127.0.0.1:1"


class Replica(tokenizer_pb2_grpc.TokenizerServicer):
    """A tokenizer that counts what it is asked."""

    def __init__(self) -> None:
        self.num_calls = 0
        self.takes_s = 0.0
        self.has_model = True
        self.leaving = Cutoff()
        self.calls = CallServer({ENCODE: self.encode}, self.leaving)
        self.server: GrpcServer | None = None

    @property
    def endpoint(self) -> str:
        assert self.server is not None
        return f"127.0.0.1:{self.server.port}"

    async def start(self, listen: str) -> None:
        def register(server: Any) -> None:
            tokenizer_pb2_grpc.add_TokenizerServicer_to_server(self, server)

        self.server = await start_server(listen, register)

    @translate_failures
    async def Calls(self, request_iterator: Any, context: Any) -> None:
        await self.calls.serve(ServerFrameStream(context))

    async def encode(self, request: Any, call: Any) -> tokenizer_pb2.EncodeResponse:
        self.num_calls += 1
        await asyncio.sleep(self.takes_s)
        if not self.has_model:
            raise Unavailable("not loaded yet", reason="no_tokenizer", retry_after_s=1)
        return tokenizer_pb2.EncodeResponse()


@contextlib.asynccontextmanager
async def two_replicas() -> AsyncIterator[tuple[list[Replica], GrpcTokenizer]]:
    replicas = [Replica(), Replica()]
    for replica, port in zip(replicas, free_ports(2), strict=True):
        await replica.start(f"{LOOPBACK}:{port}")
    client = GrpcTokenizer([replica.endpoint for replica in replicas], SystemClock())
    try:
        await until_both_answer(replicas, client)
        yield replicas, client
    finally:
        await client.close()
        for replica in replicas:
            assert replica.server is not None
            await replica.server.stop(0)


async def encode(client: GrpcTokenizer) -> None:
    await client.encode(tokenizer_pb2.EncodeRequest(), CallContext("r1", deadline_s=60))


async def until_both_answer(replicas: list[Replica], client: GrpcTokenizer) -> None:
    for replica in replicas:
        replica.num_calls = 0
    async with asyncio.timeout(60):
        while not all(replica.num_calls for replica in replicas):
            await encode(client)


async def test_a_model_that_one_replica_has_not_loaded_yet_is_encoded_by_the_other() -> None:
    async with two_replicas() as (replicas, client):
        replicas[0].has_model = False
        replicas[0].num_calls = 0
        for _ in range(20):
            await encode(client)
        assert replicas[0].num_calls > 0


async def test_a_model_that_no_replica_has_loaded_is_refused_with_that_reason() -> None:
    async with two_replicas() as (replicas, client):
        for replica in replicas:
            replica.has_model = False
        with pytest.raises(Unavailable) as refused:
            await encode(client)
        assert refused.value.reason == "no_tokenizer"


async def test_a_request_waits_for_tokenizers_that_all_come_back() -> None:
    async with two_replicas() as (replicas, client):
        for replica in replicas:
            assert replica.server is not None
            await replica.server.stop(0)
        waiting = asyncio.create_task(encode(client))
        await asyncio.sleep(1.5)  # as long as they are away
        assert not waiting.done()
        for replica in replicas:
            await replica.start(replica.endpoint)
        await waiting


def test_a_request_waits_for_a_tokenizer_as_long_as_for_a_worker() -> None:
    assert RouterSettings.no_worker_wait_s == TOKENIZER_PATIENCE_S


async def test_a_tokenizer_that_is_down_is_no_news_about_internal_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.gateway.clients.grpc.TOKENIZER_PATIENCE_S", 0.2)
    tokenizer = GrpcTokenizer([NOBODY], SystemClock())
    try:
        with pytest.raises(Unavailable) as encoding:
            await tokenizer.encode(tokenizer_pb2.EncodeRequest(), CallContext("r1", deadline_s=1))
        with pytest.raises(Unavailable) as fetching:
            await tokenizer.artifact("fp-1")
    finally:
        await tokenizer.close()
    for caught in (encoding, fetching):
        assert caught.value.message == "no tokenizer answers"
        assert caught.value.retry_after_s == 1


async def test_a_replica_that_drains_finishes_its_calls_and_gets_no_new_ones() -> None:
    async with two_replicas() as (replicas, client):
        leaving, staying = replicas
        leaving.takes_s = staying.takes_s = 0.3
        async with asyncio.TaskGroup() as tasks:
            for _ in range(8):
                tasks.create_task(encode(client))
            async with asyncio.timeout(60):
                while not leaving.num_calls:
                    await asyncio.sleep(0.01)
            assert leaving.server is not None
            leaving.leaving.now()
            await leaving.server.stop(10)
        had = leaving.num_calls
        for _ in range(10):
            await encode(client)
        assert leaving.num_calls == had
        assert staying.num_calls >= 10


async def test_a_replica_that_dies_costs_no_call_and_is_used_again_when_it_is_back() -> None:
    async with two_replicas() as (replicas, client):
        dying = replicas[0]
        listen = dying.endpoint
        assert dying.server is not None
        await dying.server.stop(0)
        for _ in range(10):
            await encode(client)
        await dying.start(listen)
        await until_both_answer(replicas, client)


class Closing:
    """Takes connections, and closes each at once: a replica that is never back."""

    def __init__(self) -> None:
        self.tried_at_s: list[float] = []

    def __call__(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tried_at_s.append(time.monotonic())
        writer.close()


CLIENTS: dict[str, Callable[[str], Any]] = {
    "quota": lambda endpoint: GrpcQuota([endpoint], SystemClock()),
    "tokenizer": lambda endpoint: GrpcTokenizer([endpoint], SystemClock()),
    "router": lambda endpoint: GrpcRouter(endpoint, SystemClock()),
}


async def ask(client: Any) -> None:
    context = CallContext("r1", deadline_s=60)
    if isinstance(client, GrpcRouter):
        await client.pick(router_pb2.PickRequest(), context)
    else:
        await client.probe(60)


@pytest.mark.parametrize("service", CLIENTS)
async def test_a_replica_that_is_away_is_looked_for_every_tenth_of_a_second(service: str) -> None:
    """Pauses never shrink while a replica is away, so one short late pause tells of all. A busy
    machine makes some of them longer."""
    closing = Closing()
    listening = await asyncio.start_server(closing, LOOPBACK, 0)
    client = CLIENTS[service](f"{LOOPBACK}:{listening.sockets[0].getsockname()[1]}")
    try:
        async with asyncio.timeout(60):
            while len(closing.tried_at_s) < 16:
                with contextlib.suppress(Unavailable):
                    await ask(client)
                await asyncio.sleep(0.005)
    finally:
        await client.close()
        listening.close()
        await listening.wait_closed()
    late_pauses_s = [after - before for before, after in pairwise(closing.tried_at_s[5:])]
    assert min(late_pauses_s) <= 0.12


async def test_a_caller_names_its_version_and_one_too_old_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with two_replicas() as (replicas, _):
        for version in (9, 0):
            monkeypatch.setattr(grpc_channel, "PROTOCOL_VERSION", version)
            client = GrpcTokenizer([replicas[0].endpoint], SystemClock())
            if version:
                await encode(client)
            else:
                with pytest.raises(Incompatible, match="protocol 0 of the caller"):
                    await encode(client)
            await client.close()

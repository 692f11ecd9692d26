"""The real gateway under uvicorn, over real gRPC, with in-process fakes behind it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx

from baton.runtime.calls.call_server import CallServer, IncomingCall
from baton.runtime.grpc_server import start_server, translate_failures
from baton.runtime.process import Process
from baton.runtime.shared_stream import ServerFrameStream
from baton.system.clock import SystemClock
from baton.wire.call_methods import AUTHENTICATE, ENCODE, PICK, RESERVE, SETTLE
from baton.wire.v1 import (
    quota_pb2,
    quota_pb2_grpc,
    router_pb2,
    router_pb2_grpc,
    tokenizer_pb2,
    tokenizer_pb2_grpc,
    worker_pb2_grpc,
)
from services.gateway.__main__ import serve
from services.gateway.clients.protocols import CallContext
from services.gateway.settings import GatewaySettings
from tests.unit.gateway.fakes import SECRET, FakeQuota, FakeRouter, FakeTokenizer, FakeWorker


def context_of(call: IncomingCall) -> CallContext:
    return CallContext(call.request_id, call.timeout_s, call.traceparent)


class QuotaOverGrpc(quota_pb2_grpc.QuotaServicer):
    def __init__(self, fake: FakeQuota) -> None:
        self.fake = fake
        self.calls = CallServer(
            {AUTHENTICATE: self.authenticate, RESERVE: self.reserve, SETTLE: self.settle}
        )

    @translate_failures
    async def Calls(self, request_iterator: Any, context: Any) -> None:
        await self.calls.serve(ServerFrameStream(context))

    async def authenticate(self, request: Any, call: IncomingCall) -> Any:
        return await self.fake.authenticate(request.key_digest, context_of(call))

    async def reserve(self, request: Any, call: IncomingCall) -> Any:
        return await self.fake.reserve(request, context_of(call))

    async def settle(self, request: Any, call: IncomingCall) -> Any:
        await self.fake.settle(request.usage, context_of(call))
        return quota_pb2.SettleResponse()

    async def Renew(self, request_iterator: Any, context: Any) -> None:
        stream = ServerFrameStream[Any](context)
        while (request := await stream.read()) is not None:
            response = quota_pb2.RenewResponse()
            for lease in request.leases:
                granted, state = self.fake.on_renewal(lease)
                response.leases.add(
                    request_id=lease.request_id, granted_output_tokens=granted, state=state
                )
            await stream.write(response)


class TokenizerOverGrpc(tokenizer_pb2_grpc.TokenizerServicer):
    def __init__(self, fake: FakeTokenizer) -> None:
        self.fake = fake
        self.calls = CallServer({ENCODE: self.encode})

    @translate_failures
    async def Calls(self, request_iterator: Any, context: Any) -> None:
        await self.calls.serve(ServerFrameStream(context))

    async def encode(self, request: Any, call: IncomingCall) -> Any:
        return await self.fake.encode(request, context_of(call))

    async def GetArtifact(self, request: Any, context: Any) -> AsyncIterator[Any]:
        from hashlib import sha256

        data = await self.fake.artifact(request.model_fp)
        header = tokenizer_pb2.ArtifactHeader(digest=sha256(data).hexdigest(), num_bytes=len(data))
        yield tokenizer_pb2.GetArtifactResponse(header=header, data=data[:1000])
        yield tokenizer_pb2.GetArtifactResponse(data=data[1000:])


class RouterOverGrpc(router_pb2_grpc.RouterServicer):
    def __init__(self, fake: FakeRouter, endpoints: dict[str, str]) -> None:
        self.fake = fake
        self.endpoints = endpoints
        self.calls = CallServer({PICK: self.pick})

    @translate_failures
    async def Calls(self, request_iterator: Any, context: Any) -> None:
        await self.calls.serve(ServerFrameStream(context))

    async def pick(self, request: Any, call: IncomingCall) -> Any:
        answer = await self.fake.pick(request, context_of(call))
        answer.decode.endpoint = self.endpoints[answer.decode.worker_id]
        return answer

    async def WatchAdmission(self, request: Any, context: Any) -> AsyncIterator[Any]:
        assert isinstance(request, router_pb2.WatchAdmissionRequest)
        async for view in self.fake.watch_admission():
            yield view


class WorkerOverGrpc(worker_pb2_grpc.DecodeWorkerServicer):
    def __init__(self, fake: FakeWorker) -> None:
        self.fake = fake

    async def Serve(self, request_iterator: Any, context: Any) -> None:
        async with asyncio.TaskGroup() as tasks:
            await self.fake.serve(ServerFrameStream(context), tasks)  # type: ignore[arg-type]


class Stack:
    """A running gateway and the fakes behind it."""

    def __init__(self) -> None:
        self.quota = FakeQuota()
        self.tokenizer = FakeTokenizer()
        self.router = FakeRouter()
        self.router.workers = ["w1", "w2"]
        self.workers = {name: FakeWorker(name) for name in self.router.workers}
        self.worker = self.workers["w1"]
        self.endpoints: dict[str, str] = {}
        # Of everything that the gateway dials.
        self.addresses: list[str] = []
        self.stopping = asyncio.Event()
        self.port = 0

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"


async def _serve_fake(stack: contextlib.AsyncExitStack, register: Any, *, link: bool) -> str:
    server = await start_server("127.0.0.1:0", register, link=link)
    stack.push_async_callback(server.stop, 0)
    return f"127.0.0.1:{server.port}"


@contextlib.asynccontextmanager
async def running_fakes(folder: Path) -> AsyncIterator[tuple[Stack, dict[str, Any]]]:
    """Start the fakes; yields them with the settings of a gateway in front of them."""
    stack = Stack()
    secret = folder / "secret"
    secret.write_text(SECRET.hex())
    async with contextlib.AsyncExitStack() as servers:

        def worker_register(fake: FakeWorker) -> Any:
            servicer = WorkerOverGrpc(fake)
            return lambda s: worker_pb2_grpc.add_DecodeWorkerServicer_to_server(servicer, s)

        def register(add: Any, servicer: Any) -> Any:
            def into(server: grpc.aio.Server) -> None:
                add(servicer, server)

            return into

        stack.endpoints = {
            name: await _serve_fake(servers, worker_register(fake), link=True)
            for name, fake in stack.workers.items()
        }
        quota = register(quota_pb2_grpc.add_QuotaServicer_to_server, QuotaOverGrpc(stack.quota))
        tokenizer = register(
            tokenizer_pb2_grpc.add_TokenizerServicer_to_server, TokenizerOverGrpc(stack.tokenizer)
        )
        router = register(
            router_pb2_grpc.add_RouterServicer_to_server,
            RouterOverGrpc(stack.router, stack.endpoints),
        )
        yield (
            stack,
            {
                "secret_file": secret,
                "listen": "127.0.0.1:0",
                "outbox_dir": folder / "outbox",
                "quota": (await _serve_fake(servers, quota, link=False),),
                "tokenizer": (await _serve_fake(servers, tokenizer, link=False),),
                "router": (await _serve_fake(servers, router, link=False),),
                "unready_s": 0.0,
            },
        )


@contextlib.asynccontextmanager
async def running_stack(folder: Path, **settings: Any) -> AsyncIterator[Stack]:
    """Start everything, yield once the gateway listens, drain at the end."""
    async with running_fakes(folder) as (stack, own):
        configured = GatewaySettings(**{**own, **settings})
        process = Process("gateway", SystemClock(), stack.stopping)
        stack.addresses = [
            *stack.endpoints.values(),
            *configured.quota,
            *configured.tokenizer,
            *configured.router,
        ]
        async with asyncio.TaskGroup() as tasks:
            bound: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            gateway = tasks.create_task(serve(process, configured, on_bound=bound.set_result))
            stack.port = await bound
            yield stack
            stack.stopping.set()
            await gateway


async def until_ready(stack: Stack) -> None:
    """Return when the gateway knows its workers."""
    async with asyncio.timeout(60), httpx.AsyncClient(timeout=60, verify=False) as http:
        while (await http.get(f"{stack.root}/readyz")).status_code != 200:
            await asyncio.sleep(0.02)

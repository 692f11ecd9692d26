"""Shared calls over real gRPC on loopback: replicas that come back, and one that fails."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from baton.localstack.ports import LOOPBACK, free_ports
from baton.runtime import grpc_channel, grpc_server
from baton.runtime.calls.call_server import CallServer, IncomingCall
from baton.runtime.calls.shared_calls import CallTerms, SharedCalls
from baton.runtime.shared_stream import ServerFrameStream
from baton.system.clock import SystemClock
from baton.wire.call_methods import RESERVE
from baton.wire.failures import LimitExceeded, Unavailable
from baton.wire.v1 import failure_pb2, quota_pb2, quota_pb2_grpc


class RefusingQuota(quota_pb2_grpc.QuotaServicer):
    def __init__(self) -> None:
        self.seen: list[IncomingCall] = []

    async def Calls(self, request_iterator: Any, context: Any) -> None:
        await CallServer({RESERVE: self.reserve}).serve(ServerFrameStream(context))

    async def reserve(self, request: Any, call: IncomingCall) -> Any:
        self.seen.append(call)
        limits = failure_pb2.LimitState(limit_requests=7)
        raise LimitExceeded("too fast", retry_after_s=2, limits=limits)


async def start(listen: str, quota: RefusingQuota) -> grpc_server.GrpcServer:
    def register(target: grpc.aio.Server) -> None:
        quota_pb2_grpc.add_QuotaServicer_to_server(quota, target)

    return await grpc_server.start_server(listen, register)


@contextlib.asynccontextmanager
async def calls_to(endpoint: str) -> AsyncIterator[SharedCalls]:
    async with grpc_channel.open_balanced_channel([endpoint]) as channel:
        stub = quota_pb2_grpc.QuotaStub(channel)
        calls = SharedCalls.over_grpc(stub, SystemClock(), is_balanced=True)
        yield calls
        await calls.close()


async def reserve(calls: SharedCalls, patience_s: float = 0.0) -> None:
    terms = CallTerms(60.0, patience_s, request_id="r1", traceparent="00-1")
    await calls.call(RESERVE, quota_pb2.ReserveRequest(), terms)


async def test_a_failure_arrives_as_the_same_error_and_the_call_with_its_words() -> None:
    quota = RefusingQuota()
    server = await start("127.0.0.1:0", quota)
    async with calls_to(f"127.0.0.1:{server.port}") as calls:
        with pytest.raises(LimitExceeded) as caught:
            await reserve(calls)
    assert caught.value.retry_after_s == 2
    assert caught.value.limits is not None
    assert caught.value.limits.limit_requests == 7
    assert (quota.seen[0].request_id, quota.seen[0].traceparent) == ("r1", "00-1")
    assert 50 < quota.seen[0].timeout_s <= 60.1
    await server.stop(0)


async def test_a_call_waits_for_a_replica_that_is_back_in_a_moment() -> None:
    endpoint = f"{LOOPBACK}:{free_ports(1)[0]}"
    first = await start(endpoint, RefusingQuota())
    async with calls_to(endpoint) as calls:
        with pytest.raises(LimitExceeded):
            await reserve(calls)
        await first.stop(0)
        with pytest.raises(Unavailable):
            await reserve(calls)
        waiting = asyncio.create_task(reserve(calls, 50))
        await asyncio.wait([waiting], timeout=0.3)
        again = await start(endpoint, RefusingQuota())
        with pytest.raises(LimitExceeded):
            await waiting
        await again.stop(0)


# Fails as a service does: its loop ends with a call open.
FAILING_PEER = """
import asyncio
from baton.runtime import grpc_server
from baton.runtime.calls.call_server import CallServer
from baton.runtime.shared_stream import ServerFrameStream
from baton.wire.call_methods import RESERVE
from baton.wire.v1 import quota_pb2_grpc

async def main():
    has_begun = asyncio.Event()

    class Waiting(quota_pb2_grpc.QuotaServicer):
        async def Calls(self, request_iterator, context):
            await CallServer({RESERVE: self.reserve}).serve(ServerFrameStream(context))

        async def reserve(self, request, call):
            has_begun.set()
            await asyncio.Event().wait()

    def register(target):
        quota_pb2_grpc.add_QuotaServicer_to_server(Waiting(), target)

    running = await grpc_server.start_server("127.0.0.1:0", register)
    print(running.port, flush=True)
    await has_begun.wait()
    raise SystemExit("a bug")

asyncio.run(main())
"""


async def test_a_call_that_a_failing_peer_cancels_may_be_made_elsewhere() -> None:
    """Its loop's end cancels the call, which is not a client that left."""
    peer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FAILING_PEER, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert peer.stdout is not None
    try:
        async with calls_to(f"127.0.0.1:{int(await peer.stdout.readline())}") as calls:
            with pytest.raises(Unavailable):
                await reserve(calls)
    finally:
        _, errors = await peer.communicate()
    assert b"a bug" in errors

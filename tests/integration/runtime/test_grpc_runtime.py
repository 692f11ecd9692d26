"""Unary calls and shared streams over real gRPC on loopback."""

import asyncio
import subprocess
import sys
from functools import partial

import grpc
import pytest

from baton.localstack.ports import LOOPBACK, free_ports
from baton.runtime import grpc_channel, grpc_server
from baton.runtime.shared_stream import ClientFrameStream, ServerFrameStream
from baton.system.clock import SystemClock
from baton.testing.fault_proxy import FaultProxy, OneUpstream
from baton.wire.failures import DeadlineExceeded, LimitExceeded, Unavailable
from baton.wire.v1 import failure_pb2, quota_pb2, quota_pb2_grpc, worker_pb2, worker_pb2_grpc

call = partial(grpc_channel.call, clock=SystemClock())


class RefusingQuota(quota_pb2_grpc.QuotaServicer):
    def __init__(self) -> None:
        self.seen: list[grpc_server.Incoming] = []

    @grpc_server.translate_failures
    async def Reserve(self, request, context):
        self.seen.append(grpc_server.incoming(context))
        limits = failure_pb2.LimitState(limit_requests=7)
        raise LimitExceeded("too fast", retry_after_s=2, limits=limits)


class EchoWorker(worker_pb2_grpc.DecodeWorkerServicer):
    async def Serve(self, request_iterator, context):
        stream = ServerFrameStream(context)
        while (frame := await stream.read()) is not None:
            await stream.write(worker_pb2.WorkerFrame(bye=frame.bye))


def refusing(target: grpc.aio.Server) -> None:
    quota_pb2_grpc.add_QuotaServicer_to_server(RefusingQuota(), target)


@pytest.fixture
async def server():
    quota = RefusingQuota()

    def register(target: grpc.aio.Server) -> None:
        quota_pb2_grpc.add_QuotaServicer_to_server(quota, target)
        worker_pb2_grpc.add_DecodeWorkerServicer_to_server(EchoWorker(), target)

    running = await grpc_server.start_server("127.0.0.1:0", register, link=True)
    running.quota = quota
    yield running
    await running.stop(0)


async def test_a_failure_arrives_as_the_same_error_with_its_limits(server) -> None:
    async with grpc_channel.open_channel(f"127.0.0.1:{server.port}") as channel:
        stub = quota_pb2_grpc.QuotaStub(channel)
        with pytest.raises(LimitExceeded) as caught:
            await call(stub.Reserve, quota_pb2.ReserveRequest(), deadline_s=60, request_id="r1")
    assert caught.value.retry_after_s == 2
    assert caught.value.limits.limit_requests == 7
    assert server.quota.seen[0].request_id == "r1"


async def test_a_passed_deadline_never_leaves_the_process(server) -> None:
    with pytest.raises(DeadlineExceeded):
        await call(None, None, deadline_s=0)


async def test_an_absent_server_is_unavailable() -> None:
    async with grpc_channel.open_channel("127.0.0.1:1") as channel:
        stub = quota_pb2_grpc.QuotaStub(channel)
        with pytest.raises(Unavailable):
            await call(stub.Settle, quota_pb2.SettleRequest(), deadline_s=60)


async def test_frames_go_both_ways_and_an_end_is_seen(server) -> None:
    async with grpc_channel.open_channel(f"127.0.0.1:{server.port}", link=True) as channel:
        stream = ClientFrameStream(worker_pb2_grpc.DecodeWorkerStub(channel).Serve())
        await stream.write(worker_pb2.GatewayFrame(bye=worker_pb2.Bye(reason="x")))
        frame = await stream.read()
        assert frame.bye.reason == "x"
        await stream.close()
        assert await stream.read() is None


async def test_a_taken_port_is_an_os_error(server) -> None:
    with pytest.raises(OSError, match="cannot listen"):
        await grpc_server.start_server(f"127.0.0.1:{server.port}", lambda _: None)


async def test_a_connection_that_takes_its_time_is_made() -> None:
    server = await grpc_server.start_server("127.0.0.1:0", refusing)
    with FaultProxy(OneUpstream("127.0.0.1", server.port)) as proxy:
        with proxy.fault(delay_s=0.15):
            async with grpc_channel.open_channel(proxy.address) as channel:
                stub = quota_pb2_grpc.QuotaStub(channel)
                with pytest.raises(LimitExceeded):
                    await call(stub.Reserve, quota_pb2.ReserveRequest(), deadline_s=60)
    await server.stop(0)


async def test_a_call_waits_for_a_replica_that_is_back_in_a_moment() -> None:
    async def reserve(channel: grpc.aio.Channel, patience_s: float) -> None:
        stub = quota_pb2_grpc.QuotaStub(channel)
        request = quota_pb2.ReserveRequest()
        await call(stub.Reserve, request, deadline_s=60, patience_s=patience_s)

    endpoint = f"{LOOPBACK}:{free_ports(1)[0]}"
    first = await grpc_server.start_server(endpoint, refusing)
    async with grpc_channel.open_balanced_channel([endpoint]) as channel:
        with pytest.raises(LimitExceeded):
            await reserve(channel, 0)
        await first.stop(0)
        with pytest.raises(Unavailable):
            await reserve(channel, 0)
        waiting = asyncio.create_task(reserve(channel, 50))
        await asyncio.wait([waiting], timeout=0.3)
        again = await grpc_server.start_server(endpoint, refusing)
        with pytest.raises(LimitExceeded):
            await waiting
        await again.stop(0)


# Fails as a service does: its loop ends with a call open.
FAILING_PEER = """
import asyncio
from baton.runtime import grpc_server
from baton.wire.v1 import quota_pb2_grpc

async def main():
    has_begun = asyncio.Event()

    class Waiting(quota_pb2_grpc.QuotaServicer):
        async def Reserve(self, request, context):
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
        port = int(await peer.stdout.readline())
        async with grpc_channel.open_channel(f"127.0.0.1:{port}") as channel:
            stub = quota_pb2_grpc.QuotaStub(channel)
            with pytest.raises(Unavailable) as caught:
                await call(stub.Reserve, quota_pb2.ReserveRequest(), deadline_s=60)
    finally:
        _, errors = await peer.communicate()
    assert b"a bug" in errors
    assert isinstance(caught.value.__cause__, grpc.aio.AioRpcError)
    assert caught.value.__cause__.code() is grpc.StatusCode.CANCELLED

"""Unary calls and shared streams over real gRPC on loopback."""

import grpc
import pytest

from baton.runtime import grpc_channel, grpc_server
from baton.runtime.grpc_channel import call
from baton.runtime.shared_stream import ClientFrameStream, ServerFrameStream
from baton.testing.fault_proxy import FaultProxy, OneUpstream
from baton.wire.failures import DeadlineExceeded, LimitExceeded, Unavailable
from baton.wire.v1 import (
    failure_pb2,
    tokenizer_pb2,
    tokenizer_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)


class RefusingTokenizer(tokenizer_pb2_grpc.TokenizerServicer):
    @grpc_server.translate_failures
    async def ListModels(self, request, context):
        limits = failure_pb2.LimitState(limit_requests=7)
        raise LimitExceeded("too fast", retry_after_s=2, limits=limits)


class EchoWorker(worker_pb2_grpc.DecodeWorkerServicer):
    async def Serve(self, request_iterator, context):
        stream = ServerFrameStream(context)
        while (frame := await stream.read()) is not None:
            await stream.write(worker_pb2.WorkerFrame(bye=frame.bye))


def refusing(target: grpc.aio.Server) -> None:
    tokenizer_pb2_grpc.add_TokenizerServicer_to_server(RefusingTokenizer(), target)


@pytest.fixture
async def server():
    def register(target: grpc.aio.Server) -> None:
        refusing(target)
        worker_pb2_grpc.add_DecodeWorkerServicer_to_server(EchoWorker(), target)

    running = await grpc_server.start_server("127.0.0.1:0", register, link=True)
    yield running
    await running.stop(0)


async def test_a_failure_arrives_as_the_same_error_with_its_limits(server) -> None:
    async with grpc_channel.open_channel(f"127.0.0.1:{server.port}") as channel:
        stub = tokenizer_pb2_grpc.TokenizerStub(channel)
        with pytest.raises(LimitExceeded) as caught:
            await call(stub.ListModels, tokenizer_pb2.ListModelsRequest(), deadline_s=60)
    assert caught.value.retry_after_s == 2
    assert caught.value.limits.limit_requests == 7


async def test_a_passed_deadline_never_leaves_the_process(server) -> None:
    with pytest.raises(DeadlineExceeded):
        await call(None, None, deadline_s=0)


async def test_an_absent_server_is_unavailable() -> None:
    async with grpc_channel.open_channel("127.0.0.1:1") as channel:
        stub = tokenizer_pb2_grpc.TokenizerStub(channel)
        with pytest.raises(Unavailable):
            await call(stub.ListModels, tokenizer_pb2.ListModelsRequest(), deadline_s=60)


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
                stub = tokenizer_pb2_grpc.TokenizerStub(channel)
                with pytest.raises(LimitExceeded):
                    await call(stub.ListModels, tokenizer_pb2.ListModelsRequest(), deadline_s=60)
    await server.stop(0)

"""Both worker fronts behind real gRPC servers on loopback, by each transport between them.

Models are fakes in this process.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from baton.engine.protocol.messages import SamplingParams
from baton.engine.step.engine import Engine, EngineConfig
from baton.handoff.block_bytes import MAX_DATA_BYTES
from baton.handoff.transports.device_reads import DeviceReads
from baton.handoff.transports.nixl_agent import NixlAgent
from baton.runtime.grpc_channel import open_channel
from baton.runtime.grpc_server import GrpcServer, start_server
from baton.runtime.shared_stream import ClientFrameStream
from baton.system.clock import SystemClock
from baton.system.memory_file import create_memory_file
from baton.testing.device_runner import DeviceFakeRunner
from baton.testing.engine_driver import encode_tokens
from baton.testing.fake_runner import FakeRunner
from baton.testing.local_client import LocalEngineClient
from baton.wire.protocol import PROTOCOL_VERSION
from baton.wire.v1 import router_pb2, sampling_pb2, worker_pb2, worker_pb2_grpc
from baton.worker import instruments
from baton.worker.program import make_parts
from baton.worker.transports import HandoffOptions
from services.decode_worker.__main__ import DecodeProgram
from services.prefill_worker.__main__ import PrefillProgram
from tests import needs

NUM_BLOCKS = 512


@dataclass
class RunningWorker:
    engine: Engine
    front: Any
    server: GrpcServer

    @property
    def num_used_blocks(self) -> int:
        return NUM_BLOCKS - self.engine.measure_load().num_blocks_free


@contextlib.asynccontextmanager
async def running(
    name: str,
    role: Any,
    program: Any,
    model_fp: str = "fake-model",
    handoff: HandoffOptions | None = None,
    *,
    has_device: bool = False,
) -> AsyncIterator[RunningWorker]:
    """A worker on a free port."""
    config = EngineConfig(model_fp, "fake", "1", num_blocks=NUM_BLOCKS, num_rows=NUM_BLOCKS // 2)
    clock = SystemClock()
    # Pages of a realistic size: a long prompt fills several frames.
    runner, device = FakeRunner(num_layers=8), None
    if has_device:
        runner = DeviceFakeRunner(num_layers=8)
        agent = NixlAgent(name, is_read=True)
        device = DeviceReads(runner.kv_spec, runner, agent, ring_bytes=4 * MAX_DATA_BYTES)
    engine = Engine(config, runner, clock, device=device)
    pool_file = create_memory_file(name)
    client = LocalEngineClient(engine, clock, lambda batch: 0.001, pool_file)
    os.close(pool_file)
    parts = make_parts(client, worker_id=name, role=role, clock=clock, handoff=handoff)
    front = program(parts)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(front.run())
        server = await start_server("127.0.0.1:0", front.register, link=True)
        yield RunningWorker(engine, front, server)
        await front.drain(2.0)
        await server.stop(1.0)
        task.cancel()
    await client.close()


@contextlib.asynccontextmanager
async def gateway_stream(port: int) -> AsyncIterator[Any]:
    """A stream to a decode worker after its hello."""
    channel = open_channel(f"127.0.0.1:{port}", link=True)
    stream: Any = ClientFrameStream(worker_pb2_grpc.DecodeWorkerStub(channel).Serve())
    hello = worker_pb2.GatewayHello(protocol=PROTOCOL_VERSION, gateway_id="gateway-1")
    await stream.write(worker_pb2.GatewayFrame(hello=hello))
    assert (await stream.read()).hello.worker_id == "decode-1"
    yield stream
    await stream.write(worker_pb2.GatewayFrame(bye={"reason": "test over"}))
    assert await stream.read() is None
    await channel.close()


def submit_frame(
    handle: int, prompt: list[int], prefill_port: int, max_tokens: int = 12
) -> worker_pb2.GatewayFrame:
    return worker_pb2.GatewayFrame(
        submit=worker_pb2.Submit(
            request_id=f"request-{handle}",
            epoch=1,
            handle=handle,
            model_fp="fake-model",
            prompt_ids=encode_tokens(prompt),
            num_prompt_tokens=len(prompt),
            cache_key=b"k" * 32,
            sampling=sampling_pb2.Sampling(
                max_tokens=max_tokens,
                num_choices=1,
                num_logprobs=-1,
                num_prompt_logprobs=-1,
                seed=5,
                temperature=0.7,
            ),
            prefill_endpoint=f"127.0.0.1:{prefill_port}",
            initial_credit_tokens=1000,
        )
    )


async def collect(stream: Any, num_requests: int) -> dict[int, list[int]]:
    """Tokens by handle, until so many requests have finished."""
    tokens: dict[int, list[int]] = {}
    num_finished = 0
    while num_finished < num_requests:
        frame = await stream.read()
        assert frame is not None, "the stream ended early"
        assert not frame.HasField("refused"), frame.refused.failure
        step = frame.step
        counts = step.counts or [1] * len(step.handles)
        start = 0
        for handle, first, count in zip(step.handles, step.first_index, counts, strict=True):
            ids = tokens.setdefault(handle, [])
            assert first == len(ids)
            ids += step.ids[start : start + count]
            start += count
        for side in step.side:
            assert not side.finish.HasField("failure"), side.finish.failure
            num_finished += side.HasField("finish")
    return tokens


async def wait_until_free(*workers: RunningWorker) -> None:
    async with asyncio.timeout(60):
        while any(worker.num_used_blocks for worker in workers):
            await asyncio.sleep(0.01)
    for worker in workers:
        worker.engine.check_integrity()
        worker.front.check_integrity()


TRANSPORTS = [
    "grpc",
    pytest.param("shm", marks=needs.linux),
    pytest.param("nixl", marks=needs.nixl),
    pytest.param("nixl-device", marks=needs.nixl),
]


@pytest.fixture(params=TRANSPORTS)
async def pair(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[tuple[RunningWorker, RunningWorker]]:
    has_device = request.param == "nixl-device"
    names = tuple(dict.fromkeys((request.param.removesuffix("-device"), "grpc")))
    handoff = HandoffOptions(names, tmp_path)
    roles = router_pb2.WORKER_ROLE_PREFILL, router_pb2.WORKER_ROLE_DECODE
    async with (
        running(
            "prefill-1", roles[0], PrefillProgram, handoff=handoff, has_device=has_device
        ) as prefill,
        running(
            "decode-1", roles[1], DecodeProgram, handoff=handoff, has_device=has_device
        ) as decode,
    ):
        before = num_links(request.param)
        yield decode, prefill
        assert num_links(request.param) > before


def num_links(transport: str) -> float:
    return float(instruments.HANDOFF_LINKS.labels(transport)._value.get())


async def test_requests_that_were_handed_over_answer_as_lone_local_runs(
    pair: tuple[RunningWorker, RunningWorker],
) -> None:
    decode, prefill = pair
    prompts = {i: [(i * 31 + j) % 900 for j in range(40 * i)] for i in range(1, 9)}
    async with gateway_stream(decode.server.port) as stream:
        for handle, prompt in prompts.items():
            await stream.write(submit_frame(handle, prompt, prefill.server.port))

        tokens = await collect(stream, len(prompts))

    runner = FakeRunner(num_layers=8)
    for handle, prompt in prompts.items():
        params = SamplingParams(12, temperature=0.7, seed=5)
        assert tokens[handle] == runner.lone_run(prompt, params)
    await wait_until_free(decode, prefill)


async def test_a_gateway_that_vanishes_frees_both_workers(
    pair: tuple[RunningWorker, RunningWorker],
) -> None:
    decode, prefill = pair
    channel = open_channel(f"127.0.0.1:{decode.server.port}", link=True)
    stream: Any = ClientFrameStream(worker_pb2_grpc.DecodeWorkerStub(channel).Serve())
    hello = worker_pb2.GatewayHello(protocol=PROTOCOL_VERSION, gateway_id="gateway-1")
    await stream.write(worker_pb2.GatewayFrame(hello=hello))
    await stream.read()
    await stream.write(submit_frame(1, list(range(300)), prefill.server.port, max_tokens=3000))
    while not (await stream.read()).step.ids:
        pass
    assert decode.num_used_blocks > 0

    await channel.close()

    await wait_until_free(decode, prefill)


async def test_a_prefill_worker_that_goes_away_is_dialled_again_when_it_is_back(
    pair: tuple[RunningWorker, RunningWorker],
) -> None:
    decode, prefill = pair
    async with gateway_stream(decode.server.port) as stream:
        await stream.write(submit_frame(1, list(range(50)), prefill.server.port))
        await collect(stream, 1)
        async with running("prefill-2", router_pb2.WORKER_ROLE_PREFILL, PrefillProgram) as second:
            await stream.write(submit_frame(2, list(range(60)), second.server.port))
            await collect(stream, 1)
            gone = second.server.port

        await stream.write(submit_frame(3, list(range(70)), gone))
        refused = (await stream.read()).refused
        assert refused.failure.reason == "handoff_failed"
        await stream.write(submit_frame(4, list(range(80)), prefill.server.port))
        await collect(stream, 1)
    await wait_until_free(decode, prefill)


async def test_a_foreign_model_is_refused_by_name_over_grpc() -> None:
    async with (
        running("prefill-x", router_pb2.WORKER_ROLE_PREFILL, PrefillProgram, "other") as prefill,
        running("decode-1", router_pb2.WORKER_ROLE_DECODE, DecodeProgram) as decode,
        gateway_stream(decode.server.port) as stream,
    ):
        await stream.write(submit_frame(1, list(range(50)), prefill.server.port))

        failure = (await stream.read()).refused.failure

        assert failure.reason == "incompatible"
        assert "model_fp fake-model of decode-1 != other here" in failure.message

"""The router over real gRPC: workers' reports in, picks out; and the router as a process."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from functools import partial
from random import Random

import grpc
import pytest

from baton.engine.protocol.cache_messages import StoredBlocks
from baton.engine.protocol.messages import EngineLoad, StepEvents
from baton.localstack.ports import LOOPBACK, free_ports
from baton.runtime import grpc_channel, grpc_server
from baton.runtime.calls.shared_calls import CallTerms, SharedCalls
from baton.runtime.cutoff import Cutoff
from baton.runtime.discovery.discover import FixedMembers
from baton.system.clock import SystemClock
from baton.wire.call_methods import PICK
from baton.wire.failures import ModelNotFound, Overloaded, Unavailable
from baton.wire.pick_reasons import text_of
from baton.wire.protocol import PROTOCOL_VERSION
from baton.wire.v1 import router_pb2, router_pb2_grpc, worker_pb2, worker_pb2_grpc
from baton.worker.reports import ReportLog
from baton.worker.reports_servicer import WorkerReportsServicer
from services.router import servicer as router_servicer
from services.router.__main__ import ReportCall, add_services
from services.router.router_core import RouterCore
from services.router.servicer import RouterServicer
from services.router.settings import Settings
from services.router.watcher import Watcher

DECODE, PREFILL = router_pb2.WORKER_ROLE_DECODE, router_pb2.WORKER_ROLE_PREFILL
BLOCK = b"h" * 16


class WorkerServer:
    """A gRPC server that only reports."""

    def __init__(self, worker_id: str, role: int, boot_epoch: int = 1) -> None:
        register = worker_pb2.Register(
            protocol=PROTOCOL_VERSION,
            worker_id=worker_id,
            boot_epoch=boot_epoch,
            role=role,
            model_fp="fp-1",
            model_name="demo",
            kv_spec_digest="spec",
            block_size=16,
            num_blocks=100,
            max_model_len=1000,
            max_num_seqs=4,
        )
        self.log = ReportLog(register, self.answer_snapshot, SystemClock())
        self.snapshot = b""

    def answer_snapshot(self) -> None:
        asyncio.get_running_loop().call_soon(lambda: self.turn(snapshot=self.snapshot))

    def turn(self, *, running: int = 0, stored: bytes = b"", snapshot: bytes | None = None) -> None:
        load = EngineLoad(running, 0, 100, 0, 0, 0.0, 0.0)
        chain = [StoredBlocks(b"", stored)] if stored else []
        self.log.apply(StepEvents(step=1, load=load, stored=chain, snapshot=snapshot))

    async def start(self, listen: str = "127.0.0.1:0") -> None:
        servicer = WorkerReportsServicer(self.log)
        self.server = await grpc_server.start_server(
            listen,
            lambda s: worker_pb2_grpc.add_WorkerReportsServicer_to_server(servicer, s),
            link=True,
        )
        self.endpoint = f"127.0.0.1:{self.server.port}"

    async def stop(self) -> None:
        self.log.close()
        await self.server.stop(1)


class Client:
    """Calls a router as a gateway does."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.stub = router_pb2_grpc.RouterStub(channel)
        self.calls = SharedCalls.over_grpc(self.stub, SystemClock(), is_balanced=False)

    async def pick(self, request_id: str = "r1", deadline_s: float = 60, **fields):
        fields = {"model_fp": "fp-1", "num_prompt_tokens": 64} | fields
        request = router_pb2.PickRequest(request_id=request_id, **fields)
        return await self.calls.call(PICK, request, CallTerms(deadline_s))

    async def until(self, condition) -> router_pb2.WatchAdmissionResponse:
        """The first state of the fleet that meets `condition`."""
        call = self.stub.WatchAdmission(router_pb2.WatchAdmissionRequest())
        async with asyncio.timeout(60):
            async for response in call:
                if condition(response):
                    call.cancel()
                    return response
        raise AssertionError("the watch ended")

    async def until_ready(self, *worker_ids: str) -> router_pb2.WatchAdmissionResponse:
        return await self.until(lambda response: ready_ids(response) == set(worker_ids))


def ready_ids(response: router_pb2.WatchAdmissionResponse) -> set[str]:
    return {w.worker_id for model in response.models for w in model.workers if w.ready}


@contextlib.asynccontextmanager
async def running_router(*endpoints: str, **settings) -> AsyncIterator[Client]:
    clock = SystemClock()
    core = RouterCore(Settings(workers=endpoints, **settings), clock, Random(1))
    servicer = RouterServicer(core, Cutoff())
    server = await grpc_server.start_server(
        "127.0.0.1:0", lambda s: router_pb2_grpc.add_RouterServicer_to_server(servicer, s)
    )
    async with asyncio.TaskGroup() as tasks:
        watcher = Watcher(core, ReportCall, clock, Random(1))
        watch = tasks.create_task(watcher.run(FixedMembers(endpoints)))
        async with grpc_channel.open_channel(f"127.0.0.1:{server.port}") as channel:
            yield Client(channel)
        core.close()
        await server.stop(1)
        watch.cancel()
    core.check_integrity()


@pytest.fixture
async def workers():
    started = [WorkerServer("d0", DECODE), WorkerServer("d1", DECODE), WorkerServer("p0", PREFILL)]
    for worker in started:
        await worker.start()
    yield started
    for worker in started:
        await worker.stop()


async def test_a_pick_knows_what_the_workers_reported(workers) -> None:
    decode, _, prefill = workers
    prefill.snapshot = BLOCK
    async with running_router(*(worker.endpoint for worker in workers)) as client:
        response = await client.until_ready("d0", "d1", "p0")
        assert response.models[0].name == "demo"
        pick = await client.pick(block_hashes=BLOCK, exclude_worker_ids=["d1"])
        assert pick.decode.endpoint == decode.endpoint
        assert pick.prefill.endpoint == prefill.endpoint
        assert pick.predicted_cached_tokens == 16
        assert "d1 excluded" in text_of(pick.reasons)


async def test_a_draining_worker_is_left_alone(workers) -> None:
    async with running_router(*(worker.endpoint for worker in workers)) as client:
        await client.until_ready("d0", "d1", "p0")
        workers[0].log.set_draining()
        await client.until_ready("d1", "p0")
        for i in range(3):
            assert (await client.pick(f"r{i}")).decode.worker_id == "d1"


async def test_a_worker_that_stops_is_seen_and_waited_for(workers) -> None:
    prefill = workers[2]
    (port,) = free_ports(1)
    decode = WorkerServer("d0", DECODE)
    await decode.start(f"{LOOPBACK}:{port}")
    endpoints = (decode.endpoint, prefill.endpoint)
    async with running_router(*endpoints, no_worker_wait_s=60) as client:
        await client.until_ready("d0", "p0")
        await decode.stop()
        await client.until_ready("p0")
        waiting = asyncio.create_task(client.pick())
        reborn = WorkerServer("d0", DECODE, boot_epoch=2)
        await reborn.start(decode.endpoint)
        assert (await waiting).decode.boot_epoch == 2
        await reborn.stop()


async def test_the_calls_deadline_ends_the_wait_with_its_reason(
    workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The answer has all of the deadline but half a second for its way: a busy machine needs it.
    monkeypatch.setattr(router_servicer, "REPLY_MARGIN_S", 59.5)
    decode, _, prefill = workers
    async with running_router(decode.endpoint, prefill.endpoint) as client:
        await client.until_ready("d0", "p0")
        decode.turn(running=4)
        await client.until(lambda r: any(w.num_running == 4 for w in r.models[0].workers))
        with pytest.raises(Overloaded, match="no worker had room"):
            await client.pick(deadline_s=60)


async def test_a_cancelled_call_leaves_the_queue(workers) -> None:
    decode, _, prefill = workers
    async with running_router(decode.endpoint, prefill.endpoint) as client:
        await client.until_ready("d0", "p0")
        decode.turn(running=4)
        await client.until(lambda r: any(w.num_running == 4 for w in r.models[0].workers))
        waiting = asyncio.create_task(client.pick())
        await client.until(lambda r: r.models[0].num_queued == 1)
        waiting.cancel()
        await client.until(lambda r: r.models[0].num_queued == 0)
        decode.turn(running=0)
        assert (await client.pick("r2")).decode.worker_id == "d0"


async def test_an_unknown_model_is_not_found(workers) -> None:
    async with running_router(workers[0].endpoint) as client:
        await client.until_ready("d0")
        with pytest.raises(ModelNotFound):
            await client.pick(model_fp="other")


async def test_a_model_whose_workers_are_gone_is_unavailable(workers) -> None:
    decode, _, prefill = workers
    settings = {"no_worker_wait_s": 0.2}
    async with running_router(decode.endpoint, prefill.endpoint, **settings) as client:
        await client.until_ready("d0", "p0")
        await decode.stop()
        await client.until_ready("p0")
        with pytest.raises(Unavailable) as caught:
            await client.pick()
        assert caught.value.reason == "no_worker"


async def test_a_router_that_stops_does_not_wait_for_gateways_without_calls() -> None:
    core, leaving = RouterCore(Settings(workers=("w:1",)), SystemClock(), Random(1)), Cutoff()
    register = partial(add_services, core, leaving)
    server = await grpc_server.start_server(f"{LOOPBACK}:0", register, link=True)
    async with grpc_channel.open_channel(f"{LOOPBACK}:{server.port}") as channel:
        with pytest.raises(ModelNotFound):
            await Client(channel).pick()
        leaving.now()
        async with asyncio.timeout(20):
            await server.stop(60)


async def test_the_router_process_serves_and_drains_on_sigterm(workers, tmp_path) -> None:
    (port,) = free_ports(1)
    environment = os.environ | {
        "BATON_ROUTER_LISTEN": f"127.0.0.1:{port}",
        "BATON_ROUTER_ADMIN_LISTEN": "127.0.0.1:0",
        "BATON_ROUTER_WORKERS": ",".join(worker.endpoint for worker in workers),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.router", env=environment, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with grpc_channel.open_channel(f"127.0.0.1:{port}") as channel:
            client = Client(channel)
            await channel.channel_ready()
            await client.until_ready("d0", "d1", "p0")
            assert (await client.pick()).prefill.worker_id == "p0"
            watch = client.stub.WatchAdmission(router_pb2.WatchAdmissionRequest())
            await watch.read()
            process.send_signal(signal.SIGTERM)
            _, logs = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 0, logs
        assert b"worker_register" in logs
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()

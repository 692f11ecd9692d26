"""The router's watchers against real report logs, over streams in memory and on virtual time."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from functools import reduce
from operator import xor
from random import Random

import pytest

from baton.engine.protocol.cache_messages import StoredBlocks
from baton.engine.protocol.messages import EngineLoad, StepEvents
from baton.runtime.discovery.discover import FixedMembers
from baton.runtime.discovery.members import Discovery, Member
from baton.testing.memory_stream import MemoryStream, memory_stream_pair
from baton.testing.virtual_clock import VirtualClock, run_virtual
from baton.wire.prefix_hash import short_hash
from baton.wire.protocol import PROTOCOL_VERSION
from baton.wire.v1 import router_pb2, worker_pb2
from baton.worker.reports import ReportLog
from baton.worker.reports_servicer import serve_reports
from services.router.watcher import MAX_BACKOFF_S, Watcher


class WorkerProcess:
    """One worker's report log and the streams that routers opened to it."""

    def __init__(self, worker_id: str, role: int, boot_epoch: int = 1) -> None:
        self.cache: set[bytes] = set()
        self.step = 0
        self.snapshot_asked = False
        self.num_snapshots = 0
        register = worker_pb2.Register(
            protocol=PROTOCOL_VERSION,
            worker_id=worker_id,
            boot_epoch=boot_epoch,
            role=role,
            model_fp="fp-1",
            kv_spec_digest="spec",
            block_size=16,
            num_blocks=100,
            max_num_seqs=4,
        )
        self.log = ReportLog(register, self._ask, VirtualClock())
        self.streams: list[MemoryStream] = []

    def _ask(self) -> None:
        self.snapshot_asked = True

    def turn(self, stored: bytes = b"") -> None:
        """One turn of the core: store blocks, answer a snapshot that was asked for."""
        self.step += 1
        if stored:
            self.cache.add(stored)
        snapshot = b"".join(self.cache) if self.snapshot_asked else None
        self.num_snapshots += self.snapshot_asked
        self.snapshot_asked = False
        self.log.apply(
            StepEvents(
                step=self.step,
                load=EngineLoad(0, 0, 100, 0, 0, 0.0, 0.0),
                stored=[StoredBlocks(b"", stored)] if stored else [],
                snapshot=snapshot,
                num_cached_hashes=len(self.cache),
                cache_digest=reduce(xor, map(short_hash, self.cache), 0),
            )
        )

    def die(self) -> None:
        for stream in self.streams:
            stream.cancel()


class Network:
    """Dials workers by endpoint; counts the attempts."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.tasks = tasks
        self.workers: dict[str, WorkerProcess] = {}
        self.dialled_at: list[float] = []

    def dial(self, endpoint: str) -> MemoryStream:
        self.dialled_at.append(asyncio.get_running_loop().time())
        ours, theirs = memory_stream_pair()
        worker = self.workers.get(endpoint)
        if worker is None:
            theirs.cancel()
        else:
            worker.streams.append(theirs)
            self.tasks.create_task(serve_reports(theirs, worker.log))
        return ours


@contextlib.asynccontextmanager
async def following(fleet, discovery: Discovery) -> AsyncIterator[Network]:
    async with asyncio.TaskGroup() as tasks:
        network = Network(tasks)
        watcher = Watcher(fleet.core, network.dial, fleet.clock, Random(1))
        watch = tasks.create_task(watcher.run(discovery))
        yield network
        watch.cancel()
        for worker in network.workers.values():
            worker.log.close()


@pytest.fixture
def run(clock):
    return lambda scenario: run_virtual(scenario(), clock)


def worker_states(core) -> dict[str, router_pb2.WorkerState]:
    return {w.worker_id: w for model in core.admission().models for w in model.workers}


def test_workers_become_known_and_their_caches_count(router, run) -> None:
    async def scenario() -> None:
        fleet = router(workers=("d0:1", "p0:1", "p1:1"))
        async with following(fleet, FixedMembers(("d0:1", "p0:1", "p1:1"))) as network:
            network.workers["d0:1"] = WorkerProcess("d0", router_pb2.WORKER_ROLE_DECODE)
            for name in ("p0", "p1"):
                role = router_pb2.WORKER_ROLE_PREFILL
                network.workers[f"{name}:1"] = WorkerProcess(name, role)
            block = b"h" * 16
            network.workers["p1:1"].turn(block)
            await asyncio.sleep(0.5)
            for worker in network.workers.values():
                worker.turn()
            await asyncio.sleep(0.5)
            response = await fleet.pick(block_hashes=block)
            assert response.prefill.worker_id == "p1"
            assert response.predicted_cached_tokens == 16

    run(scenario)


def test_idle_workers_stay_fresh_by_their_heartbeats(router, run) -> None:
    async def scenario() -> None:
        fleet = router(workers=("d0:1",))
        async with following(fleet, FixedMembers(("d0:1",))) as network:
            network.workers["d0:1"] = WorkerProcess("d0", router_pb2.WORKER_ROLE_DECODE)
            await asyncio.sleep(2)
            for _ in range(100):
                assert worker_states(fleet.core)["d0"].ready
                await asyncio.sleep(0.07)

    run(scenario)


def test_a_worker_that_dies_is_not_ready_and_its_next_life_is_taken_in(router, run) -> None:
    async def scenario() -> None:
        fleet = router(workers=("d0:1",))
        async with following(fleet, FixedMembers(("d0:1",))) as network:
            network.workers["d0:1"] = WorkerProcess("d0", router_pb2.WORKER_ROLE_DECODE)
            await asyncio.sleep(1)
            network.workers.pop("d0:1").die()
            await asyncio.sleep(0.01)
            assert not worker_states(fleet.core)["d0"].ready
            network.workers["d0:1"] = WorkerProcess("d0", router_pb2.WORKER_ROLE_DECODE, 2)
            await asyncio.sleep(0.2)
            assert (await fleet.pick()).decode.boot_epoch == 2

    run(scenario)


def test_a_stream_that_broke_goes_on_without_a_snapshot(router, run) -> None:
    async def scenario() -> None:
        fleet = router(workers=("d0:1",))
        async with following(fleet, FixedMembers(("d0:1",))) as network:
            worker = network.workers["d0:1"] = WorkerProcess("d0", router_pb2.WORKER_ROLE_DECODE)
            for _ in range(10):
                worker.turn()
                await asyncio.sleep(0.1)
            assert worker.num_snapshots == 1
            worker.die()
            blocks = [number.to_bytes(16, "big") for number in range(3)]
            for block in blocks:
                worker.turn(block)
            for _ in range(100):
                worker.turn()
                await asyncio.sleep(0.1)
            assert len(worker.streams) == 2
            assert worker.num_snapshots == 1
            response = await fleet.pick(block_hashes=b"".join(blocks), local_prefill=True)
            assert response.predicted_cached_tokens == 48

    run(scenario)


def test_an_absent_worker_is_dialled_ever_more_rarely(router, run) -> None:
    async def scenario() -> None:
        fleet = router(workers=("d0:1",))
        async with following(fleet, FixedMembers(("d0:1",))) as network:
            await asyncio.sleep(30)
            pauses = [b - a for a, b in itertools.pairwise(network.dialled_at)]
            assert pauses[0] < 0.06
            assert 0.4 < pauses[-1] <= MAX_BACKOFF_S
            assert 30 <= len(pauses) <= 60

    run(scenario)


def test_a_worker_that_cannot_be_served_is_never_ready(router, run) -> None:
    async def scenario() -> None:
        fleet = router(workers=("d0:1",))
        async with following(fleet, FixedMembers(("d0:1",))) as network:
            worker = WorkerProcess("d0", router_pb2.WORKER_ROLE_DECODE)
            worker.log.register.num_blocks = 10**9
            network.workers["d0:1"] = worker
            await asyncio.sleep(3)
            assert worker_states(fleet.core) == {}

    run(scenario)


class Listing:
    """A discovery that lists the addresses that the test gives it."""

    def __init__(self, *endpoints: str) -> None:
        self.endpoints = endpoints
        self.found = None

    async def follow(self, found) -> None:
        self.found = found
        self.list(*self.endpoints)
        await asyncio.Event().wait()

    def list(self, *endpoints: str) -> None:
        self.found([Member(endpoint) for endpoint in endpoints])


def test_a_worker_that_is_listed_later_is_found(router, run) -> None:
    async def scenario() -> None:
        fleet = router(workers=("kubernetes:workers",))
        listing = Listing("d0:1")
        async with following(fleet, listing) as network:
            for name in ("d0", "d1"):
                network.workers[f"{name}:1"] = WorkerProcess(name, router_pb2.WORKER_ROLE_DECODE)
            await asyncio.sleep(1)
            assert worker_states(fleet.core).keys() == {"d0"}
            listing.list("d0:1", "d1:1")
            await asyncio.sleep(1)
            assert worker_states(fleet.core).keys() == {"d0", "d1"}

    run(scenario)


def test_a_worker_that_is_listed_no_longer_works_on_until_it_is_lost(router, run) -> None:
    async def scenario() -> None:
        fleet = router(workers=("kubernetes:workers",))
        listing = Listing("d0:1", "d1:1")
        async with following(fleet, listing) as network:
            for name in ("d0", "d1"):
                network.workers[f"{name}:1"] = WorkerProcess(name, router_pb2.WORKER_ROLE_DECODE)
            await asyncio.sleep(1)
            listing.list()  # as an API server would whose controllers have just begun
            await asyncio.sleep(60)
            states = worker_states(fleet.core)
            assert states["d0"].ready
            assert states["d1"].ready
            network.workers.pop("d1:1").die()
            await asyncio.sleep(10)
            assert worker_states(fleet.core).keys() == {"d0"}
            num_dialled = len(network.dialled_at)
            await asyncio.sleep(60)
            assert len(network.dialled_at) == num_dialled

    run(scenario)


def test_a_model_whose_last_worker_is_gone_is_still_known_until_another_comes(router, run) -> None:
    async def scenario() -> None:
        fleet = router(workers=("kubernetes:workers",))
        listing = Listing("d0:1")
        async with following(fleet, listing) as network:
            network.workers["d0:1"] = WorkerProcess("d0", router_pb2.WORKER_ROLE_DECODE)
            await asyncio.sleep(1)
            listing.list()
            network.workers.pop("d0:1").die()
            await asyncio.sleep(10)
            assert not worker_states(fleet.core)["d0"].ready
            network.workers["d1:1"] = WorkerProcess("d1", router_pb2.WORKER_ROLE_DECODE)
            listing.list("d1:1")
            await asyncio.sleep(2)
            assert worker_states(fleet.core).keys() == {"d1"}
            fleet.core.check_integrity()

    run(scenario)

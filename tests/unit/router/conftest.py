"""Builders for the router's tests: views for the picker, and a router with workers in memory."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from baton.testing.virtual_clock import VirtualClock
from baton.wire.prefix_hash import HASH_BYTES
from baton.wire.protocol import PROTOCOL_VERSION
from baton.wire.v1 import router_pb2, worker_pb2
from services.router.fleet.reported import BlockShape
from services.router.fleet.views import Demand, Policy, PrefillMode, Room, Speed, WorkerView
from services.router.fleet.zones import ZoneLinks
from services.router.router_core import RouterCore
from services.router.settings import Settings

MODEL = "fp-1"


def build_view(worker_id: str, **changes: Any) -> WorkerView:
    """A free, idle worker; `changes` name fields of the view, its room or its speed."""
    room = Room(
        num_blocks=1000,
        num_blocks_free=1000,
        num_blocks_promised=0,
        num_batch_slots=32,
        num_batch_slots_free=32,
    )
    view = WorkerView(
        worker_id=worker_id,
        unfit=None,
        shape=BlockShape("spec", 16, 1_000_000),
        room=room,
        speed=Speed(1000.0, 0.01, 1e9),
        num_running=0,
        num_sequences=0,
        num_queued_prefill_tokens=0,
        num_cached_tokens=0,
    )
    for name in ("room", "speed", "shape"):
        part = getattr(view, name)
        own = {field: changes.pop(field) for field in list(changes) if hasattr(part, field)}
        changed = replace(part, **own) if name == "shape" else part._replace(**own)
        view = view._replace(**{name: changed})
    return view._replace(**changes)


@pytest.fixture
def view() -> Callable[..., WorkerView]:
    return build_view


@pytest.fixture
def demand() -> Callable[..., Demand]:
    def build(**changes: Any) -> Demand:
        return Demand(512, 100, 1, PrefillMode.REMOTE)._replace(**changes)

    return build


@pytest.fixture
def policy() -> Policy:
    return Policy.of(Settings(), ZoneLinks(VirtualClock(), 60.0))


def joined_hashes(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(HASH_BYTES, "big") for number in numbers)


@pytest.fixture
def hashes() -> Callable[..., bytes]:
    return joined_hashes


class WorkerInMemory:
    """Sends a router what a worker of this name would report."""

    def __init__(self, core: RouterCore, worker_id: str, role: int, model_fp: str) -> None:
        self.core = core
        self.endpoint = f"{worker_id}:1"
        self.seq = 0
        self.register = worker_pb2.Register(
            protocol=PROTOCOL_VERSION,
            worker_id=worker_id,
            boot_epoch=1,
            role=role,
            model_fp=model_fp,
            model_name="demo",
            kv_spec_digest="spec",
            block_size=16,
            num_blocks=100,
            max_model_len=4096,
            max_num_seqs=4,
            block_bytes=1000,
        )

    def start(self, boot_epoch: int = 1, *, tells_cache: bool = True) -> None:
        """Register, an empty snapshot, an idle load."""
        self.register.boot_epoch = boot_epoch
        self.seq = 0
        self.send(register=self.register)
        if tells_cache:
            self.send(snapshot=worker_pb2.KvSnapshot())
        self.load()

    def send(self, **report: Any) -> worker_pb2.ReportAck:
        self.seq += 1
        return self.core.apply_report(self.endpoint, worker_pb2.Report(seq=self.seq, **report))

    def load(self, *accepted: str, **figures: Any) -> worker_pb2.ReportAck:
        figures = {"num_blocks_total": 100, "num_blocks_free": 100} | figures
        return self.send(load=worker_pb2.Load(accepted_request_ids=accepted, **figures))

    def stored(self, *numbers: int) -> worker_pb2.ReportAck:
        stored = worker_pb2.KvStored(hashes=joined_hashes(*numbers))
        return self.send(kv_events=worker_pb2.KvEvents(events=[worker_pb2.KvEvent(stored=stored)]))

    def removed(self, *numbers: int) -> worker_pb2.ReportAck:
        removed = worker_pb2.KvRemoved(hashes=joined_hashes(*numbers))
        event = worker_pb2.KvEvent(removed=removed)
        return self.send(kv_events=worker_pb2.KvEvents(events=[event]))


class RouterInMemory:
    """A RouterCore on a virtual clock. Build it inside the running loop's scenario."""

    def __init__(self, clock: VirtualClock, **settings: Any) -> None:
        self.clock = clock
        defaults: dict[str, Any] = {"workers": ()}
        self.core = RouterCore(Settings(**(defaults | settings)), clock, Random(1))

    def decode(
        self,
        name: str = "d0",
        model_fp: str = MODEL,
        zone: str = "",
        *,
        tells_cache: bool = True,
    ) -> WorkerInMemory:
        worker = WorkerInMemory(self.core, name, router_pb2.WORKER_ROLE_DECODE, model_fp)
        worker.register.zone = zone
        worker.start(tells_cache=tells_cache)
        return worker

    def prefill(self, name: str = "p0", model_fp: str = MODEL, zone: str = "") -> WorkerInMemory:
        worker = WorkerInMemory(self.core, name, router_pb2.WORKER_ROLE_PREFILL, model_fp)
        worker.register.zone = zone
        worker.start()
        return worker

    async def pick(
        self, request_id: str = "r1", timeout_s: float | None = None, **fields: Any
    ) -> router_pb2.PickResponse:
        fields = {
            "model_fp": MODEL,
            "num_prompt_tokens": 64,
            "expected_output_tokens": 100,
            "num_choices": 1,
        } | fields
        request = router_pb2.PickRequest(request_id=request_id, **fields)
        try:
            return await self.core.pick(request, timeout_s)
        finally:
            self.core.check_integrity()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def router(clock: VirtualClock) -> Callable[..., RouterInMemory]:
    def build(**settings: Any) -> RouterInMemory:
        return RouterInMemory(clock, **settings)

    return build

"""A worker process from start to exit: core, front, gRPC port, admin port, drain.

The core loads first; the port opens when the worker can serve. Asked to stop, the front drains
within `drain_s`; then streams, server and core end. When the core dies, the front tells its peers
and the process exits with an error: its supervisor starts it again.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol

import grpc

import baton
from baton.engine.process.process_client import EngineSpec, ProcessEngineClient
from baton.engine.protocol.cache_messages import SnapshotHashes
from baton.engine.protocol.client import CoreNotStarted, EngineClient, ModelRefused
from baton.engine.protocol.messages import EngineInfo
from baton.handoff.block_bytes import KEPT_BYTES, BlockBytes
from baton.handoff.transports.device_transport import CoreReads, DeviceTransport
from baton.handoff.transports.nixl_agent import NixlMissing
from baton.handoff.transports.shared_memory import SharedPool
from baton.runtime import admin, logs, peer_tls
from baton.runtime.grpc_server import start_server
from baton.runtime.process import Misconfigured, Process
from baton.system.allocator import keep_freed_memory
from baton.system.clock import Clock
from baton.wire.model_files import BadModelFiles, ModelFiles
from baton.wire.protocol import PROTOCOL_VERSION
from baton.wire.v1 import router_pb2, worker_pb2, worker_pb2_grpc
from baton.worker.adapters import AdapterFolder
from baton.worker.core_watch import CoreWatch, WatchLimits
from baton.worker.deps import WorkerDeps
from baton.worker.dispatch import EngineDispatcher
from baton.worker.files.model_folder import what_is_missing
from baton.worker.files.servicer import WorkerFilesServicer, files_of
from baton.worker.grammar_gate import GrammarGate
from baton.worker.metrics import VllmMetrics, WorkerMetrics, totals_of
from baton.worker.reports import ReportLog
from baton.worker.reports_servicer import WorkerReportsServicer
from baton.worker.settings import Settings
from baton.worker.transports import HandoffOptions, make_transports

CORE_MODULE = "baton.worker.core_main"
VLLM_CORE_MODULE = "baton.engines.vllm.core_main"
_STOP_GRACE_S = 1.0
# How long a worker that leaves still takes what a router sends that does not know it yet.
REPORT_DRAINING_S = 0.5

_log = logs.get("worker")


class Front(Protocol):
    """The half of a worker that differs between roles."""

    async def run(self) -> None:
        """Serve until cancelled. Raises CoreDied (in a group)."""

    async def drain(self, limit_s: float) -> None:
        """Take nothing new, let what runs end within `limit_s`, then end all streams."""

    def register(self, server: grpc.aio.Server) -> None:
        """Add its service to the worker's port."""


def make_parts(
    client: EngineClient,
    *,
    worker_id: str,
    role: "router_pb2.WorkerRole",
    clock: Clock,
    zone: str = "",
    limits: WatchLimits | None = None,
    handoff: HandoffOptions | None = None,
    random_bytes: Callable[[int], bytes] = secrets.token_bytes,
) -> WorkerDeps:
    """Everything a front is built from, around one core."""
    boot_epoch = int(clock.unix() * 1000)
    dispatcher = EngineDispatcher(client, clock)
    blocks = BlockBytes(client.info.kv_spec, client.pool)
    pool = SharedPool(worker_id, blocks, client.pool_fd)
    handoff = handoff or HandoffOptions()
    transports = make_transports(
        handoff,
        pool,
        random_bytes,
        is_sender=role == router_pb2.WORKER_ROLE_PREFILL,
        device=_device_transport(dispatcher, handoff),
    )
    register = _register_message(
        client.info,
        worker_id=worker_id,
        boot_epoch=boot_epoch,
        role=role,
        transports=transports.names,
        zone=zone,
    )
    watch = CoreWatch(client, clock, limits)
    totals = totals_of(dispatcher.times, boot_epoch, clock)
    reports = ReportLog(register, lambda: dispatcher.send(SnapshotHashes()), clock, totals)
    watch.on_change(reports.set_stalled)
    if client.info.engine != "baton":
        dispatcher.observe(VllmMetrics(client.info, reports.adapter_names, clock).observe)
    return WorkerDeps(
        worker_id=worker_id,
        boot_epoch=boot_epoch,
        dispatcher=dispatcher,
        watch=watch,
        blocks=blocks,
        transports=transports,
        reports=reports,
        metrics=WorkerMetrics(client.info, totals),
        grammar_gate=GrammarGate(client.info, clock),
        clock=clock,
        random_bytes=random_bytes,
    )


def _register_message(
    info: EngineInfo,
    *,
    worker_id: str,
    boot_epoch: int,
    role: router_pb2.WorkerRole,
    transports: Sequence[str],
    zone: str = "",
) -> worker_pb2.Register:
    """A worker's registration, its first report; constant for the life of its core."""
    return worker_pb2.Register(
        protocol=PROTOCOL_VERSION,
        worker_id=worker_id,
        boot_epoch=boot_epoch,
        role=role,
        model_fp=info.model_fp,
        model_name=info.model_name,
        model_revision=info.model_revision,
        kv_spec_digest=info.kv_spec.digest(),
        block_size=info.kv_spec.block_size,
        num_blocks=info.num_blocks,
        max_model_len=info.max_model_len,
        max_num_seqs=info.max_num_seqs,
        transports=transports,
        vocab_size=info.vocab_size,
        eos_token_ids=info.eos_token_ids,
        block_bytes=info.kv_spec.row_bytes,
        software_version=_software_version(),
        zone=zone,
        stands_in=role == router_pb2.WORKER_ROLE_PREFILL,
        engine=info.engine,
        unsupported=[*info.unsupported, *(() if info.pooling is not None else ("embeddings",))],
    )


def _software_version() -> str:
    try:
        return version("baton-serving-core")
    except PackageNotFoundError:
        return "unpackaged"


def _device_transport(
    dispatcher: EngineDispatcher, handoff: HandoffOptions
) -> DeviceTransport | None:
    """None when the core's pool is the shared one."""
    info = dispatcher.info
    if info.device_pool is None:
        return None
    reads = CoreReads(dispatcher.send)
    dispatcher.observe(lambda events: reads.take_answers(events.pages_read))
    return DeviceTransport(
        info.kv_spec, info.device_pool, reads, checksum_every=handoff.checksum_every
    )


async def serve_worker(
    process: Process,
    settings: Settings,
    role: "router_pb2.WorkerRole",
    make_front: Callable[[WorkerDeps], Front],
) -> None:
    """Serve until `process.stopping`. Raises Misconfigured when the core refuses the model, other
    CoreNotStarted, OSError, SettingsError, and CoreDied in a group."""
    peer_tls.check_listen(settings.listen)
    if missing := what_is_missing(settings.model):
        raise Misconfigured(missing)
    keep_freed_memory(KEPT_BYTES)
    try:
        client = await _load(process.stopping, settings)
    except ModelRefused as error:
        raise Misconfigured(str(error)) from None
    if client is None:
        return
    try:
        deps = make_parts(
            client,
            worker_id=settings.identity(),
            role=role,
            clock=process.clock,
            zone=settings.zone,
            limits=settings.watch_limits(),
            handoff=settings.handoff(),
        )
        deps = replace(deps, last_suspects=client.last_suspects)
        if settings.adapters is not None:
            deps = replace(
                deps, adapters=AdapterFolder(settings.adapters, deps.dispatcher, deps.reports)
            )
        files = await asyncio.to_thread(files_of, client.info)
        await _serve(process, settings, deps, make_front(deps), files)
    except BadModelFiles as error:
        raise CoreNotStarted(f"{error}; it must be loaded again") from None
    except NixlMissing as error:
        raise Misconfigured(str(error)) from None
    finally:
        await client.close()
    _log.info("stopped")


async def _load(stopping: asyncio.Event, settings: Settings) -> ProcessEngineClient | None:
    """The loaded core; None when asked to stop meanwhile. Raises CoreNotStarted."""
    _log.info("loading", model=settings.model)
    async with asyncio.TaskGroup() as tasks:
        loading = tasks.create_task(_start_core(settings))
        stop = tasks.create_task(stopping.wait())
        await asyncio.wait((loading, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        loading.cancel()
    if loading.cancelled():
        return None
    outcome = loading.result()
    if isinstance(outcome, CoreNotStarted):
        raise outcome
    info = outcome.info
    _log.info("loaded", model=info.model_name, model_fp=info.model_fp, num_blocks=info.num_blocks)
    return outcome


async def _start_core(settings: Settings) -> ProcessEngineClient | CoreNotStarted:
    """A failure is returned, so that it reaches the caller alone and not in a group."""
    try:
        return await ProcessEngineClient.start(
            _core_of(settings),
            settings.core_arguments(),
            load_timeout_s=settings.load_timeout_s,
            page_file=settings.page_file(),
        )
    except CoreNotStarted as error:
        return error


def _core_of(settings: Settings) -> EngineSpec:
    """The program of the engine that the settings name."""
    module = VLLM_CORE_MODULE if settings.engine == "vllm" else CORE_MODULE
    if not settings.engine_python:
        return EngineSpec(module)
    # Another environment has its own packages: where Baton is installed among this one's, it must
    # have Baton, too; from a checkout it takes this one.
    root = Path(baton.__file__).parents[1]
    env = {} if root.name == "site-packages" else {"PYTHONPATH": str(root)}
    return EngineSpec(module, settings.engine_python, env)


async def _serve(
    process: Process,
    settings: Settings,
    deps: WorkerDeps,
    front: Front,
    files: ModelFiles | None,
) -> None:
    def register(server: grpc.aio.Server) -> None:
        front.register(server)
        worker_pb2_grpc.add_WorkerFilesServicer_to_server(WorkerFilesServicer(files), server)
        worker_pb2_grpc.add_WorkerReportsServicer_to_server(
            WorkerReportsServicer(deps.reports), server
        )

    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(front.run())
        if deps.adapters is not None:
            await deps.adapters.are_known.wait()
        server = await start_server(settings.listen, register, link=True)
        try:
            admin_port = admin.start_admin(
                settings.admin_listen, lambda: process.unready_reason() or deps.watch.reason()
            )
            _log.info("serving", worker_id=deps.worker_id, port=server.port, admin_port=admin_port)
            await process.stopping.wait()
            _log.info("draining")
            await server.set_serving(False)
            deps.reports.set_draining()
            if not await deps.reports.draining_taken(REPORT_DRAINING_S):
                _log.warning("draining_not_acknowledged")
            await front.drain(settings.drain_s)
        finally:
            deps.reports.close()
            await server.stop(_STOP_GRACE_S)
        running.cancel()

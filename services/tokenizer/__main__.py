"""The tokenizer process: loads the fleet's models, serves until it is asked to stop, drains."""

from baton.runtime.calls import grpc_polling  # isort: skip # noqa: F401

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random
from typing import Any

import grpc
import msgspec

from baton.runtime import environment, logs
from baton.runtime.admin import start_admin
from baton.runtime.cutoff import Cutoff
from baton.runtime.grpc_server import GrpcServer, start_server
from baton.runtime.process import Process, run
from baton.system.clock import Clock
from baton.wire.v1 import tokenizer_pb2_grpc
from services.tokenizer.encoder import EncodeLimits, Encoder
from services.tokenizer.fair_queue import QueueLimits
from services.tokenizer.fleet.clients import fetch_files, follow_routers
from services.tokenizer.fleet.fleet_models import FleetModels
from services.tokenizer.fleet.model_table import ModelTable
from services.tokenizer.fleet.tokenizer_trial import try_tokenizer
from services.tokenizer.model_folder import ModelFolder, UnusableModel, read_model_folder
from services.tokenizer.render_messages import TemplateLimits, TemplateSetup
from services.tokenizer.served_model import (
    MakeRenderer,
    RunInThread,
    ServedModel,
    load_model,
)
from services.tokenizer.servicer import TokenizerServicer
from services.tokenizer.settings import PREFIX, Settings
from services.tokenizer.template import ChildRenderer, RenderLimits

# How long a start waits for models that cannot be fetched.
SYNC_S = 60.0
Start = Callable[[Process, Settings], Awaitable[tuple[GrpcServer, Cutoff]]]

_log = logs.get("tokenizer")


async def serve(process: Process, settings: Settings) -> None:
    """Serve until `process.stopping`. Raises UnusableModel when no model can ever be served."""
    # Each prompt is a batch of its own, which a pool of threads for its texts only slows down.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "0")
    # One thread more than large prompts may have: small ones never wait for them.
    num_threads = settings.encode_threads + 1
    with ThreadPoolExecutor(num_threads, thread_name_prefix="encode") as executor:
        run_in_thread = _thread_runner(executor)
        models = ModelTable([], process.clock, waits=bool(settings.router))
        loader = _Loader(settings, process.clock, run_in_thread)
        fleet = FleetModels(models, fetch_files, loader.load, process.clock, Random())
        try:
            await loader.load_own(models)
            await _serve_fleet(process, settings, fleet, partial(_started, models, run_in_thread))
        finally:
            await models.close()


async def _serve_fleet(
    process: Process, settings: Settings, fleet: FleetModels, start: Start
) -> None:
    """Follow the fleet, and serve from when its models of now are there."""

    def unready_reason() -> str:
        is_synced = fleet.is_synced.is_set() or not settings.router
        return process.unready_reason() or ("" if is_synced else "no router, or models, yet")

    admin_port = start_admin(settings.admin_listen, unready_reason)
    stopping = asyncio.ensure_future(process.stopping.wait())
    async with asyncio.TaskGroup() as tasks:
        following = []
        if settings.router:
            routers = follow_routers(settings.router, Random(), fleet.update)
            following = [tasks.create_task(each) for each in (fleet.run(), routers)]
            synced = tasks.create_task(_synced(fleet))
            await asyncio.wait((synced, stopping), return_when=asyncio.FIRST_COMPLETED)
            synced.cancel()
        if not stopping.done():
            server, leaving = await start(process, settings)
            _log.info("serving", port=server.port, admin_port=admin_port)
            await stopping
            leaving.now()
            await server.stop(settings.drain_s)
        for task in following:
            task.cancel()


async def _synced(fleet: FleetModels) -> None:
    """Wait for the models that the first view of a router names. One whose files cannot be had is
    not waited for longer than it may take; without any a tokenizer is of no use, and one of an
    earlier version, which it would replace, may be."""
    await fleet.is_told.wait()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SYNC_S):
            await fleet.is_synced.wait()
    await fleet.has_begun.wait()
    fleet.is_synced.set()


async def _started(
    models: ModelTable, run_in_thread: RunInThread, process: Process, settings: Settings
) -> tuple[GrpcServer, Cutoff]:
    """A server of these models, and what ends its streams."""
    queue = QueueLimits(
        num_large=settings.encode_threads,
        max_prompts=settings.max_concurrent,
        max_bytes=settings.max_queued_bytes,
    )
    limits = EncodeLimits(settings.max_prompt_bytes, settings.max_run_chars, queue)
    encoder = Encoder(models, limits, process.clock, run_in_thread)
    leaving = Cutoff()

    def register(server: grpc.aio.Server) -> None:
        servicer = TokenizerServicer(encoder, models, leaving)
        tokenizer_pb2_grpc.add_TokenizerServicer_to_server(servicer, server)

    return await start_server(settings.listen, register), leaving


class _Loader:
    """Loads models, with the renderers and syntaxes that the settings say."""

    def __init__(self, settings: Settings, clock: Clock, run_in_thread: RunInThread) -> None:
        self._settings = settings
        self._clock = clock
        self._make_renderer = _renderer_maker(settings, clock)
        self._run_in_thread = run_in_thread

    async def load(self, folder: ModelFolder) -> ServedModel:
        """Load a model. Raises UnusableModel."""
        syntaxes = self._settings.syntaxes_of(folder.name)
        await try_tokenizer(folder, self._clock)
        model = await load_model(
            folder, self._make_renderer, self._run_in_thread, os.urandom, syntaxes
        )
        _log.info(
            "model_loaded",
            model=folder.name,
            model_fp=folder.fingerprint,
            vocab_size=model.vocab_size,
            has_chat_template=model.renderer is not None,
        )
        return model

    async def load_own(self, models: ModelTable) -> None:
        """Load the models of the settings, one after the other. Raises UnusableModel when there is
        nothing else to serve."""
        for name, path in self._settings.model_folders():
            try:
                folder = await self._run_in_thread(read_model_folder, path, name)
                models.add(await self.load(folder))
            except UnusableModel as error:
                _log.error("model_not_served", model=name, reason=str(error)[:300])
                if len(self._settings.models) == 1 and not self._settings.router:
                    raise
                models.refuse(name, name)
        if not (self._settings.router or models.all()):
            raise UnusableModel("none of these models can be served; see above")


def _renderer_maker(settings: Settings, clock: Clock) -> MakeRenderer:
    output_limits = TemplateLimits(settings.template_max_output_bytes, settings.template_cpu_s)
    render_limits = RenderLimits(
        num_children=settings.template_children,
        max_waiting=settings.template_max_waiting,
        deadline_s=settings.template_deadline_s,
        memory_bytes=settings.template_memory_bytes,
    )

    async def make(setup: TemplateSetup) -> ChildRenderer:
        renderer = ChildRenderer(
            msgspec.structs.replace(setup, limits=output_limits), clock, render_limits
        )
        await renderer.start()
        return renderer

    return make


def _thread_runner(executor: ThreadPoolExecutor) -> RunInThread:
    async def run_in_thread(function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(executor, function, *args)

    return run_in_thread


async def main(process: Process) -> None:
    try:
        await serve(process, environment.load(Settings, PREFIX))
    except UnusableModel as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from error


if __name__ == "__main__":
    run("tokenizer", main)

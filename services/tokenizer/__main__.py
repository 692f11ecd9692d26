"""The tokenizer process: loads its models, serves until it is asked to stop, then drains."""

from baton.runtime.calls import grpc_polling  # isort: skip # noqa: F401

import asyncio
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import msgspec

from baton.runtime import environment, logs
from baton.runtime.admin import start_admin
from baton.runtime.cutoff import Cutoff
from baton.runtime.grpc_server import start_server
from baton.runtime.process import Process, run
from baton.system.clock import Clock
from baton.wire.converted_tokenizer import cache_folder
from baton.wire.v1 import tokenizer_pb2_grpc
from services.tokenizer.conversion import tokenizer_file
from services.tokenizer.encoder import EncodeLimits, Encoder
from services.tokenizer.fair_queue import QueueLimits
from services.tokenizer.model_folder import ModelFolder, UnusableModel, read_model_folder
from services.tokenizer.render_messages import TemplateLimits, TemplateSetup
from services.tokenizer.served_model import (
    MakeRenderer,
    ModelTable,
    RunInThread,
    ServedModel,
    load_model,
)
from services.tokenizer.servicer import TokenizerServicer
from services.tokenizer.settings import PREFIX, Settings
from services.tokenizer.syntaxes import Syntaxes
from services.tokenizer.template import ChildRenderer, RenderLimits

_log = logs.get("tokenizer")


async def serve(process: Process, settings: Settings) -> None:
    """Serve until `process.stopping`. Raises UnusableModel."""
    # Each prompt is a batch of its own, which a pool of threads for its texts only slows down.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "0")
    # One thread more than large prompts may have: small ones never wait for them.
    num_threads = settings.encode_threads + 1
    with ThreadPoolExecutor(num_threads, thread_name_prefix="encode") as executor:
        run_in_thread = _thread_runner(executor)
        models = await _load_models(settings, process.clock, run_in_thread)
        try:
            await _serve_models(process, settings, models, run_in_thread)
        finally:
            await models.close()


async def _serve_models(
    process: Process, settings: Settings, models: ModelTable, run_in_thread: RunInThread
) -> None:
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

    server = await start_server(settings.listen, register)
    admin_port = start_admin(settings.admin_listen, process.unready_reason)
    _log.info("serving", port=server.port, admin_port=admin_port)
    await process.stopping.wait()
    leaving.now()
    await server.stop(settings.drain_s)


async def _load_models(settings: Settings, clock: Clock, run_in_thread: RunInThread) -> ModelTable:
    make_renderer = _renderer_maker(settings, clock)
    models: list[ServedModel] = []
    try:
        for name, path in settings.model_folders():
            folder = await run_in_thread(read_model_folder, path, name)
            file = await tokenizer_file(folder, cache_folder(), settings.convert_deadline_s)
            syntaxes = settings.syntaxes_of(name)
            models.append(await _load(folder, file, make_renderer, run_in_thread, syntaxes))
    except UnusableModel:
        await ModelTable(models).close()
        raise
    return ModelTable(models)


async def _load(
    folder: ModelFolder,
    file: Path,
    make_renderer: MakeRenderer,
    run_in_thread: RunInThread,
    syntaxes: Syntaxes,
) -> ServedModel:
    model = await load_model(folder, file, make_renderer, run_in_thread, os.urandom, syntaxes)
    _log.info(
        "model_loaded",
        model=folder.name,
        model_fp=folder.fingerprint,
        vocab_size=model.vocab_size,
        has_chat_template=model.renderer is not None,
    )
    return model


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

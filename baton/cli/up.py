"""`baton up`: the whole disaggregated stack on this machine, in the foreground or detached."""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from baton.cli import status
from baton.cli.key_homes import LocalKeys
from baton.cli.keys import create_key
from baton.cli.startup import LoadLogs, StartLine
from baton.cli.up_options import add_options, read_options, require_memory
from baton.keys.changes import NewKey
from baton.localstack import kernels, model_folder, models, plan
from baton.localstack.home import Home, StackState
from baton.localstack.models import LocalModel
from baton.localstack.readiness import stack_reason
from baton.localstack.supervisor import StartFailed, Supervisor
from baton.wire import key_registry
from baton.wire.pooling import Pooling, read_pooling

DEV_TENANT = "dev"
_READY_TIMEOUT_S = 600
_POLL_S = 0.1
_DRAIN_NOTICE = "\nstopping: open requests may finish (Ctrl-C again ends everything at once)"


def add_parsers(commands: Any) -> None:
    up = commands.add_parser("up", help="run the whole stack on this machine")
    add_options(up)
    up.set_defaults(run=_up)


def _up(arguments: argparse.Namespace) -> int:
    home = Home.of_environment()
    home.create()
    if arguments.detach:
        return _detach(home)
    with home.lock():
        options = read_options(arguments)
        for model in options.models:
            length = options.worker.max_model_len
            model_folder.check(model.name, model.folder, length, options.worker.engine)
        require_memory(options)
        kernels.build_missing(lambda line: print(line, flush=True))
        models.link_adapters(home.adapters, options.worker.adapters)
        return asyncio.run(_run(home, plan.make(home, options)))


async def _run(home: Home, made: plan.Plan) -> int:
    progress = StartLine(sys.stdout)

    def announce(line: str) -> None:
        progress.end()
        print(line, flush=True)

    supervisor = Supervisor(made.services, home.logs, announce)
    state = StackState(
        os.getpid(), made.base_url, web_url=made.web_url, models=made.options.public_names
    )

    def save() -> None:
        state.services, state.stopping = supervisor.rows(), supervisor.is_stopping
        home.write_state(state)

    supervisor.on_change = save
    _write_dev_env(home, made)
    print(_starting(made.options), flush=True)
    try:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(supervisor.run())
            with _signals(supervisor, group) as asked_to_stop:
                with _cleared(progress):
                    logs = LoadLogs(home.logs, _workers(made))
                    await _until_ready(made, running, asked_to_stop, (progress, logs))
                if not running.done() and not asked_to_stop.is_set():
                    supervisor.mark_ready()
                    state.ready = True
                    save()
                    print(_welcome(home, made, state), flush=True)
                await running
    except ExceptionGroup as group:
        if not isinstance(group.exceptions[0], StartFailed):
            raise
        raise group.exceptions[0] from None
    finally:
        home.write_state(None)
    print("stopped", flush=True)
    return 0


@contextmanager
def _signals(supervisor: Supervisor, group: asyncio.TaskGroup) -> Iterator[asyncio.Event]:
    """First SIGINT or SIGTERM: drain, and set the event. Second: end everything at once."""
    asked_to_stop = asyncio.Event()

    def on_signal() -> None:
        if not asked_to_stop.is_set():
            asked_to_stop.set()
            print(_DRAIN_NOTICE, flush=True)
            group.create_task(supervisor.stop())
        else:
            supervisor.kill()

    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, on_signal)
    yield asked_to_stop
    for number in numbers:
        loop.remove_signal_handler(number)


def _workers(made: plan.Plan) -> list[str]:
    names = (spec.name for spec in made.services)
    return [name for name in names if name.startswith(plan.WORKER_PREFIXES)]


@contextmanager
def _cleared(progress: StartLine) -> Iterator[None]:
    """Whatever ends the wait, its line makes room for what is said then."""
    try:
        yield
    finally:
        progress.end()


async def _until_ready(
    made: plan.Plan,
    running: "asyncio.Task[None]",
    asked_to_stop: asyncio.Event,
    shown: tuple[StartLine, LoadLogs],
) -> None:
    """Return when gateway and all workers are ready, or when the stack ends before that."""
    progress, logs = shown
    endpoints = {service.name: service.endpoint for service in made.services}
    started = time.monotonic()
    while not running.done() and not asked_to_stop.is_set():
        reason = await stack_reason(endpoints)
        elapsed_s = time.monotonic() - started
        if reason is None:
            progress.end()
            print(f"ready after {elapsed_s:.1f} s", flush=True)
            return
        if elapsed_s > _READY_TIMEOUT_S:
            raise StartFailed(f"not ready after {_READY_TIMEOUT_S} s: {reason}; see: baton logs")
        progress.show(logs.waiting_for(reason), elapsed_s)
        await asyncio.wait({running}, timeout=_POLL_S)


def _write_dev_env(home: Home, made: plan.Plan) -> None:
    """Write BASE_URL, API_KEY and METRICS_URL; a key of the last run that is still valid stays."""
    secret = key_registry.ensure_secret(home.secret)
    key_registry.ensure_secret(home.admin_token)
    api_key = home.read_dev_env().get("API_KEY", "")
    digest = key_registry.key_digest(secret, api_key).hex()
    records = key_registry.live_keys(key_registry.read(home.registry).keys.values())
    if not api_key or digest not in {record.digest for record in records}:
        api_key = create_key(LocalKeys(home), NewKey(DEV_TENANT))
    home.write_dev_env(
        {"BASE_URL": made.base_url, "API_KEY": api_key, "METRICS_URL": made.metrics_url}
    )


def _starting(options: plan.Options) -> str:
    pools = (
        f"{options.num_prefill} prefill + {options.num_decode} decode workers"
        if options.num_prefill
        else f"{options.num_decode} aggregated workers"
    )
    names = ", ".join(model.name for model in options.models)
    each = " each" if len(options.models) > 1 else ""
    others = ", ".join(
        f"{options.num_replicas(service)} {service}s" if service in options.replicas else service
        for service in plan.REPLICATED
    )
    front = ", Envoy" if options.edge else ""
    return f"starting Baton: {names} on {pools}{each}, with {others}, Redis{front}"


def _welcome(home: Home, made: plan.Plan, state: StackState) -> str:
    api_key = home.read_dev_env()["API_KEY"]
    # As it was called, so that the line can be typed.
    baton = sys.argv[0] if Path(sys.argv[0]).name == "baton" else "baton"
    model: LocalModel = made.options.models[0]
    return f"""
{status.table(state)}

base URL  {made.base_url}
API key   {api_key}
web page  {made.web_url}

{examples(made.base_url, api_key, model.name, read_pooling(model.folder))}
also in {home.dev_env}
in another terminal: {baton} chat | top | trace | logs | open | keys; {baton} --help
stop: Ctrl-C, or {baton} down"""


def examples(base_url: str, api_key: str, model: str, pooling: Pooling | None) -> str:
    """First requests to a model, by what it gives."""
    path, body = "chat/completions", '"messages": [{"role": "user", "content": "What is TTFT?"}]'
    if pooling is not None:
        path, body = "embeddings", '"input": ["What is TTFT?", "Explain backpressure."]'
    if pooling is not None and pooling.is_score:
        path, body = "rerank", '"query": "What is TTFT?", "documents": ["A time.", "A cat."]'
    curl = f"""\
curl {base_url}/{path} -H "Authorization: Bearer {api_key}" \\
  -H "Content-Type: application/json" \\
  -d '{{"model": "{model}", {body}}}'
"""
    if pooling is not None:
        return curl
    return f"""{curl}
from openai import OpenAI
client = OpenAI(base_url="{base_url}", api_key="{api_key}")
messages = [{{"role": "user", "content": "Explain backpressure in simple terms."}}]
for chunk in client.chat.completions.create(model="{model}", messages=messages, stream=True):
    print(chunk.choices[0].delta.content or "", end="", flush=True)
"""


def _detach(home: Home) -> int:
    """Run the same command in a session of its own; returns when it is ready or has failed."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--detach"]
    if home.read_state() is None:
        # A killed supervisor may have left its state file: from here on a state is the child's own.
        home.write_state(None)
    log = home.logs / "up.log"
    with log.open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "baton.cli", *arguments],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    with log.open() as told:
        while child.poll() is None:
            state = home.read_state()
            if state is not None and state.supervisor_pid == child.pid and state.ready:
                break
            print(told.read(), end="", flush=True)
            time.sleep(_POLL_S)
        print(told.read(), end="")
    return child.returncode or 0

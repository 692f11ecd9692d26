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

from baton.cli import stack
from baton.cli.key_homes import LocalKeys
from baton.cli.keys import create_key
from baton.keys.changes import NewKey
from baton.localstack import models, plan
from baton.localstack.home import Home, StackState
from baton.localstack.models import LocalModel
from baton.localstack.readiness import stack_reason
from baton.localstack.supervisor import StartFailed, Supervisor
from baton.system.byte_size import format_bytes, parse_bytes
from baton.wire import key_registry
from baton.wire.pooling import Pooling, read_pooling

DEV_TENANT = "dev"
# Names that examples for OpenAI's API ask for.
OPENAI_NAMES = ("gpt-4o", "gpt-4o-mini", "gpt-3.5-turbo")
_READY_TIMEOUT_S = 600
_POLL_S = 0.1
_SHOW_WAITING_EVERY_S = 2.0
# argparse takes "%%" for "%".
_AUTO_MEMORY = f"auto: {plan.MEMORY_SHARE:.0%}% of free memory for all workers (auto)"
_DRAIN_NOTICE = "\nstopping: open requests may finish (Ctrl-C again ends everything at once)"


class NotEnoughMemory(Exception):
    """The models do not fit; the message names the memory that they need and the free memory."""


def add_parsers(commands: Any) -> None:
    up = commands.add_parser("up", help="run the whole stack on this machine")
    up.add_argument("--prefill", type=int, default=1, metavar="N", help="prefill workers (1)")
    up.add_argument("--decode", type=int, default=2, metavar="N", help="decode workers (2)")
    help_text = "N workers that both prefill and decode, instead of the two pools"
    up.add_argument("--aggregated", type=int, default=0, metavar="N", help=help_text)
    help_text = "replicas of other services, such as gateway=2,quota=2,tokenizer=2,router=2"
    up.add_argument("--replicas", default="", metavar="LIST", help=help_text)
    help_text = "auto: a decode worker prefills a prompt itself where that is faster (always)"
    up.add_argument("--disaggregate", choices=("always", "auto"), default="always", help=help_text)
    help_text = "Hugging Face id or folder; repeatable; default: the bundled demo model"
    up.add_argument("--model", action="append", default=[], metavar="NAME", help=help_text)
    help_text = "another public name of a model; repeatable"
    up.add_argument("--alias", action="append", default=[], metavar="PUBLIC=MODEL", help=help_text)
    help_text = f"do not answer to {', '.join(OPENAI_NAMES)} with the first model"
    up.add_argument("--no-openai-names", action="store_true", help=help_text)
    help_text = "the engine of all workers; vllm after make setup ENGINE=vllm (baton)"
    up.add_argument("--engine", choices=("baton", "vllm"), default="baton", help=help_text)
    help_text = "ranks of each worker, with a part of the model each; for --engine vllm (1)"
    up.add_argument("--tp", type=int, default=1, metavar="N", help=help_text)
    help_text = "ranks of each prefill worker, where they are not as many (--tp)"
    up.add_argument("--prefill-tp", type=int, default=None, metavar="N", help=help_text)
    up.add_argument("--ep", action="store_true", help="ranks (--tp) divide a mixture's experts")
    help_text = "GPUs, one for each rank of each worker: 0,1,2 (all workers share the first)"
    up.add_argument("--gpus", default="", metavar="LIST", help=help_text)
    help_text = "a LoRA adapter, served under this name by --engine vllm; repeatable"
    up.add_argument("--lora", action="append", default=[], metavar="NAME=FOLDER", help=help_text)
    help_text = "of weights and KV cache; auto: the checkpoint's, float32 for float16"
    dtypes = ("auto", "float32", "bfloat16")
    up.add_argument("--dtype", choices=dtypes, default="auto", help=help_text)
    help_text = "CPU threads of each worker (all cores, divided by the workers)"
    up.add_argument("--threads", type=int, default=None, metavar="N", help=help_text)
    help_text = f"KV pool of each worker, such as 2GiB; {_AUTO_MEMORY}"
    up.add_argument("--kv-memory", default=plan.AUTO, metavar="SIZE", help=help_text)
    help_text = "longest prompt and answer together, in tokens (what model and pool allow)"
    up.add_argument("--max-model-len", type=int, default=None, metavar="N", help=help_text)
    help_text = "sequences that a worker computes at once (64)"
    up.add_argument("--max-batch", type=int, default=None, metavar="N", help=help_text)
    help_text = "speculative decoding: draft up to N tokens a step from repeated text (0)"
    up.add_argument("--speculate", type=int, default=None, metavar="N", help=help_text)
    help_text = "same tokens whatever other requests run; slower, CPU only (docs/models.md)"
    up.add_argument("--deterministic", action="store_true", help=help_text)
    up.add_argument("--edge", action="store_true", help="Envoy in front of the gateways")
    port = os.environ.get("BATON_PORT", "8080")
    help_text = "the API's port on loopback; 0 = a free one"
    up.add_argument("--port", default=port, metavar="N", help=help_text)
    up.add_argument("--detach", action="store_true", help="return when the stack is ready")
    up.set_defaults(run=_up)


def _up(arguments: argparse.Namespace) -> int:
    home = Home.of_environment()
    home.create()
    if arguments.detach:
        return _detach(home)
    with home.lock():
        options = _options(arguments)
        _require_memory(options)
        models.link_adapters(home.adapters, options.worker.adapters)
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        return asyncio.run(_run(home, plan.make(home, options)))


def _options(arguments: argparse.Namespace) -> plan.Options:
    _check_numbers(arguments)
    port = _port(arguments.port)
    served = models.resolve(arguments.model)
    names = [entry.partition("=")[0] for entry in arguments.lora]
    _check_aliases(arguments.alias, [*names, *(model.name for model in served)])
    options = plan.Options(
        models=served,
        aliases=_aliases(arguments, [model.name for model in served]),
        num_prefill=0 if arguments.aggregated else arguments.prefill,
        num_decode=arguments.aggregated or arguments.decode,
        disaggregate=arguments.disaggregate,
        replicas=_replicas(arguments.replicas),
        worker=plan.WorkerOptions(
            arguments.dtype,
            arguments.threads,
            arguments.kv_memory,
            arguments.max_model_len,
            arguments.max_batch,
            arguments.speculate,
            arguments.deterministic,
            arguments.engine,
            _engine_python(arguments.engine),
            arguments.tp,
            arguments.prefill_tp,
            _adapters(arguments, served),
            tuple(filter(None, arguments.gpus.split(","))),
            arguments.ep,
        ),
        port=port,
        spans_forward_to=os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", ""),
        edge=arguments.edge,
    )
    if problem := options.gpu_problem:
        raise StartFailed(f"--gpus {arguments.gpus}: {problem}")
    return options


def _adapters(arguments: argparse.Namespace, served: list[LocalModel]) -> dict[str, Path]:
    """The adapters of the one model. Raises StartFailed and ModelNotFound."""
    if arguments.lora and (arguments.engine != "vllm" or len(served) > 1):
        raise StartFailed("--lora is for --engine vllm and one --model, to which it belongs")
    return models.resolve_adapters(arguments.lora, served[0].name)


def _engine_python(engine: str) -> str:
    """The interpreter of the environment that has the engine. Raises StartFailed without one."""
    if engine == "baton":
        return ""
    python = Path(os.environ.get("BATON_VLLM_PYTHON", ".venv-vllm/bin/python")).absolute()
    if not python.exists():
        raise StartFailed(f"--engine vllm: there is no {python}; make setup ENGINE=vllm makes one")
    return str(python)


def _check_numbers(arguments: argparse.Namespace) -> None:
    least = {"prefill": 0, "decode": 1, "aggregated": 0, "speculate": 0}
    ones = ("threads", "max_model_len", "max_batch", "tp", "prefill_tp")
    for name, lowest in (least | dict.fromkeys(ones, 1)).items():
        value, option = getattr(arguments, name), name.replace("_", "-")
        if value is not None and value < lowest:
            raise StartFailed(f"--{option} {value}: must be {lowest} or more")
        if name in ("tp", "prefill_tp") and (value or 1) > 1 and arguments.engine != "vllm":
            raise StartFailed(f"--{option} {value}: for --engine vllm only")
    if arguments.ep and max(arguments.tp, arguments.prefill_tp or 1) == 1:
        raise StartFailed("--ep: needs --tp 2 or more, whose ranks share the experts")
    if arguments.kv_memory != plan.AUTO:
        try:
            parse_bytes(arguments.kv_memory)
        except ValueError as error:
            raise StartFailed(f"--kv-memory {error}") from None


def _replicas(text: str) -> dict[str, int]:
    """The counts of `gateway=2,quota=2`, by service."""
    counts: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        service, _, count = part.partition("=")
        if service not in plan.REPLICATED:
            raise StartFailed(
                f"--replicas {part!r}: the service must be one of {', '.join(plan.REPLICATED)}"
            )
        if not (count.isascii() and count.isdigit() and 1 <= int(count) <= plan.MAX_REPLICAS):
            raise StartFailed(f"--replicas {part!r}: say {service}=1 to {plan.MAX_REPLICAS}")
        counts[service] = int(count)
    return counts


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 2**16):
        raise StartFailed(f"port {text!r}: must be a number from 0 to 65535; 0 = a free one")
    return int(text)


def _aliases(arguments: argparse.Namespace, served: list[str]) -> tuple[str, ...]:
    """Those that were asked for, and OpenAI's names, so that its examples run unchanged."""
    given = arguments.alias
    taken = {*served, *(alias.partition("=")[0] for alias in given)}
    names = () if arguments.no_openai_names else OPENAI_NAMES
    return (*given, *(f"{name}={served[0]}" for name in names if name not in taken))


def _check_aliases(aliases: list[str], served: list[str]) -> None:
    """Check that each alias is PUBLIC=MODEL or PUBLIC=MODEL:WEIGHT, with a served model."""
    for alias in aliases:
        public, equals, target = alias.partition("=")
        if not (public and equals) or "," in alias:
            raise StartFailed(f"--alias {alias!r}: say PUBLIC=MODEL or PUBLIC=MODEL:WEIGHT")
        if target not in served and target.rpartition(":")[0] not in served:
            names = ", ".join(served)
            raise StartFailed(f"--alias {alias!r}: this stack serves {names}, not {target!r}")


def _require_memory(options: plan.Options) -> None:
    import psutil

    available = psutil.virtual_memory().available
    needed = options.needed_bytes()
    if needed > available:
        names = ", ".join(model.name for model in options.models)
        raise NotEnoughMemory(
            f"too little memory for {names} on {options.num_workers} workers: "
            f"about {format_bytes(needed)} needed, {format_bytes(available)} free"
        )


async def _run(home: Home, made: plan.Plan) -> int:
    supervisor = Supervisor(made.services, home.logs, lambda line: print(line, flush=True))
    state = StackState(os.getpid(), made.base_url)

    def save() -> None:
        pids = supervisor.pids()
        state.services = {
            spec.name: {
                "pid": pids.get(spec.name, 0),
                "endpoint": spec.endpoint,
                "metrics_url": spec.metrics_url,
            }
            for spec in made.services
        }
        home.write_state(state)

    supervisor.on_change = save
    _write_dev_env(home, made)
    print(_starting(made.options), flush=True)
    try:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(supervisor.run())
            with _signals(supervisor, group) as asked_to_stop:
                await _until_ready(made, running, asked_to_stop)
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


async def _until_ready(
    made: plan.Plan, running: "asyncio.Task[None]", asked_to_stop: asyncio.Event
) -> None:
    """Return when gateway and all workers are ready, or when the stack ends before that."""
    endpoints = {service.name: service.endpoint for service in made.services}
    started = shown = time.monotonic()
    while not running.done() and not asked_to_stop.is_set():
        reason = await stack_reason(endpoints)
        now = time.monotonic()
        if reason is None:
            print(f"ready after {now - started:.1f} s", flush=True)
            return
        if now - started > _READY_TIMEOUT_S:
            raise StartFailed(f"not ready after {_READY_TIMEOUT_S} s: {reason}")
        if now - shown > _SHOW_WAITING_EVERY_S:
            shown = now
            print(f"  {now - started:4.0f} s  loading: {reason[:160]}", flush=True)
        await asyncio.wait({running}, timeout=_POLL_S)


def _write_dev_env(home: Home, made: plan.Plan) -> None:
    """Write BASE_URL, API_KEY and METRICS_URL; a key of the last run that is still valid stays."""
    secret = key_registry.ensure_secret(home.secret)
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
    model: LocalModel = made.options.models[0]
    return f"""
{stack.table(state)}

base URL  {made.base_url}
API key   {api_key}
web page  {made.web_url}

{examples(made.base_url, api_key, model.name, read_pooling(model.folder))}
also in {home.dev_env}
live in the terminal: .venv/bin/baton top; a request's waterfall: .venv/bin/baton trace REQUEST_ID
stop: Ctrl-C, or make down"""


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
    while child.poll() is None:
        state = home.read_state()
        if state is not None and state.supervisor_pid == child.pid and state.ready:
            break
        time.sleep(_POLL_S)
    print(log.read_text(), end="")
    return child.returncode or 0

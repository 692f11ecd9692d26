"""The options of `baton up`, and the checks that they can work, before anything starts."""

import argparse
import os
from pathlib import Path

from baton.localstack import models, plan
from baton.localstack.models import LocalModel
from baton.localstack.refusal import Refusal
from baton.localstack.supervisor import StartFailed
from baton.system.byte_size import format_bytes, parse_bytes

# Names that examples for OpenAI's API ask for.
OPENAI_NAMES = ("gpt-4o", "gpt-4o-mini", "gpt-3.5-turbo")
# argparse takes "%%" for "%".
_AUTO_MEMORY = f"auto: {plan.MEMORY_SHARE:.0%}% of free memory for all workers (auto)"


class NotEnoughMemory(Refusal):
    """The models do not fit; the message names the memory that they need and the free memory."""


def add_options(up: argparse.ArgumentParser) -> None:
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
    up.add_argument(
        "--dtype", choices=("auto", "float32", "bfloat16"), default="auto", help=help_text
    )
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
    up.add_argument(
        "--detach", action="store_true", help="in the background: return when the stack is ready"
    )


def read_options(arguments: argparse.Namespace) -> plan.Options:
    _check_numbers(arguments)
    port = _port(arguments.port)
    served = models.resolve(arguments.model)
    names = [entry.partition("=")[0] for entry in arguments.lora]
    _check_aliases(arguments.alias, [*names, *(model.name for model in served)])
    options = plan.Options(
        models=served,
        aliases=aliases(arguments, [model.name for model in served]),
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


def aliases(arguments: argparse.Namespace, served: list[str]) -> tuple[str, ...]:
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


def require_memory(options: plan.Options) -> None:
    import psutil

    available = psutil.virtual_memory().available
    needed = options.needed_bytes()
    if needed > available:
        names = ", ".join(model.name for model in options.models)
        raise NotEnoughMemory(
            f"too little memory for {names} on {options.num_workers} workers: "
            f"about {format_bytes(needed)} needed, {format_bytes(available)} free"
        )

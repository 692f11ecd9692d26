"""`baton size`: how many workers for a model, machines and traffic, and what does not fit.

What follows from the model is computed by the code that loads it; rates come from data sheets, or
are the operator's measurements, and the output says which. Exit status 1 = it does not fit.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from baton.cli.sizing.machines import ACCELERATORS, Accelerator, Machines, Traffic
from baton.cli.sizing.plan import GRPC_BYTES_PER_S, Plan, make_plan
from baton.cli.sizing.values import Deployment, values_yaml
from baton.cli.sizing.worker import (
    BANDWIDTH_REACHED,
    FLOPS_REACHED,
    RANKS_REACH,
    DoesNotFit,
    Rates,
    Wanted,
)
from baton.localstack.refusal import Refusal
from baton.system.byte_size import format_bytes

_LABEL_CHARS = 26


class SizeRefused(Refusal):
    """The input is wrong, or nothing fits at all; the message is one line."""


def add_parsers(commands: Any) -> None:
    size = commands.add_parser("size", help="how many workers a model and its traffic need")
    help_text = "folder with config.json, that file alone, or Hugging Face id"
    size.add_argument("--model", required=True, help=help_text)
    size.add_argument("--engine", choices=("baton", "vllm"), default="baton")
    help_text = "ranks (GPUs) of each worker, for --engine vllm (1)"
    size.add_argument("--tp", type=_whole, default=1, metavar="N", help=help_text)
    _add_machines(size)
    _add_traffic(size)
    help_text = "the name to serve it under, and its repository on the hub (the model's)"
    size.add_argument("--name", help=help_text)
    size.add_argument("--dtype", choices=("auto", "float32", "bfloat16", "float16"), default="auto")
    size.add_argument("--max-model-len", type=_whole, metavar="N", help="(what the KV pool allows)")
    size.add_argument("--max-batch", type=_whole, metavar="N", help="(what the aims allow)")
    help_text = "of the free memory, for weights, activations and KV cache (0.9)"
    size.add_argument("--memory-share", type=_share, default=0.9, metavar="X", help=help_text)
    help_text = "what RDMA devices are called in the cluster, such as rdma/ib"
    size.add_argument("--rdma", metavar="RESOURCE", help=help_text)
    form = size.add_mutually_exclusive_group()
    form.add_argument("--values", action="store_true", help="print values for the Helm chart")
    form.add_argument("--json", action="store_true")
    size.set_defaults(run=_run)


def _add_machines(size: argparse.ArgumentParser) -> None:
    help_text = f"the device of a worker: {', '.join(ACCELERATORS)} (h100)"
    size.add_argument("--gpu", choices=ACCELERATORS, default="h100", metavar="NAME", help=help_text)
    help_text = "memory of one device, or of a worker on cpu (data sheet)"
    size.add_argument("--gib", type=_positive, metavar="GIB", help=help_text)
    help_text = "all devices, or all workers on cpu (as many as it takes)"
    size.add_argument("--gpus", type=_whole, metavar="N", help=help_text)
    size.add_argument("--nodes", type=_whole, default=1, metavar="N", help="with those (1)")
    help_text = "measured prompt tokens/s of one worker, instead of the data sheet's"
    size.add_argument("--prefill-rate", type=_positive, metavar="X", help=help_text)
    help_text = "measured output tokens/s of one worker at --max-batch"
    size.add_argument("--decode-rate", type=_positive, metavar="X", help=help_text)


def _add_traffic(size: argparse.ArgumentParser) -> None:
    size.add_argument("--rate", type=_positive, required=True, metavar="X", help="requests/s")
    size.add_argument("--prompt", type=_whole, required=True, metavar="N", help="tokens")
    size.add_argument("--output", type=_whole, required=True, metavar="N", help="tokens")
    help_text = "part of the prompt tokens that the prefix cache has (0)"
    size.add_argument("--cached", type=_part, default=0.0, metavar="X", help=help_text)
    help_text = "the mean time to first token that is wanted (any)"
    size.add_argument("--ttft-ms", type=_positive, metavar="X", help=help_text)
    help_text = "the longest wanted mean time between two tokens (50)"
    size.add_argument("--itl-ms", type=_positive, default=50.0, metavar="X", help=help_text)


def _run(arguments: argparse.Namespace) -> int:
    try:
        plan, deployment = _plan(arguments)
    except DoesNotFit as error:
        raise SizeRefused(f"does not fit: {error}") from None
    problems = list(plan.problems())
    if arguments.json:
        print(json.dumps(_facts(plan) | {"problems": problems}, indent=2))
    elif not arguments.values:
        print("\n".join(_table(plan, deployment)))
    elif not problems:
        print(f"# {_command(arguments)}")
        print("\n".join(values_yaml(plan, deployment)))
    if not arguments.json:
        for problem in problems:
            print(f"does not fit: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _plan(arguments: argparse.Namespace) -> tuple[Plan, Deployment]:
    """Raises SizeRefused and DoesNotFit."""
    machines = _machines(arguments)
    # Everything that needs torch; the other commands start without it.
    from baton.cli.sizing.outline import ModelOutline
    from baton.model.load.load import LoadOptions
    from baton.model.load.load_error import LoadError

    try:
        options = LoadOptions(
            arguments.dtype,
            max_model_len=arguments.max_model_len,
            keeps_float16=machines.device.is_gpu,
        )
        outline = ModelOutline(arguments.model, arguments.engine, arguments.tp, options)
    except LoadError as error:
        raise SizeRefused(str(error)) from None
    share = arguments.memory_share
    plan = make_plan(
        lambda max_batch: outline.worker(machines.device, share, max_batch),
        Wanted(arguments.max_model_len, arguments.max_batch),
        Rates(machines.device, arguments.prefill_rate, arguments.decode_rate),
        _traffic(arguments),
        machines,
    )
    name = arguments.name or outline.name
    if arguments.values and not arguments.name and Path(arguments.model).exists():
        raise SizeRefused("--values: say --name, the model's repository on the hub")
    return plan, Deployment(name, arguments.engine, share, arguments.rdma)


def _machines(arguments: argparse.Namespace) -> Machines:
    if arguments.engine == "baton" and arguments.tp > 1:
        raise SizeRefused("--tp: a worker of the engine baton has one GPU; take --engine vllm")
    known = ACCELERATORS[arguments.gpu]
    needed = (arguments.gib, arguments.prefill_rate, arguments.decode_rate)
    if not known.is_gpu and not all(needed):
        raise SizeRefused(
            "--gpu cpu: no data sheet tells its rates: give --gib, --prefill-rate and "
            "--decode-rate (python -m bench engine measures them)"
        )
    if arguments.gpus and arguments.gpus % arguments.nodes:
        raise SizeRefused(
            f"--gpus {arguments.gpus}: of all nodes, so a multiple of --nodes {arguments.nodes}"
        )
    memory_gib = arguments.gib or known.memory_gib
    device = Accelerator(known.name, memory_gib, known.tflops, known.terabytes_per_s)
    return Machines(device, arguments.gpus, arguments.nodes)


def _traffic(arguments: argparse.Namespace) -> Traffic:
    ttft_s = arguments.ttft_ms and arguments.ttft_ms / 1000
    lengths = (arguments.prompt, arguments.output)
    return Traffic(arguments.rate, *lengths, arguments.cached, ttft_s, arguments.itl_ms / 1000)


def _table(plan: Plan, deployment: Deployment) -> Iterator[str]:
    devices = f"{plan.worker.num_ranks} x {plan.machines.device.name} a worker"
    yield f"{deployment.name}, engine {deployment.engine}, {devices}, {plan.num_devices} in all"
    yield from _section("Workers", _workers(plan))
    yield from _section("Memory of a worker, by the code that loads models", _memory(plan))
    yield from _section(f"Rates, {_source(plan)}", _rates(plan))
    if plan.num_prefill:
        yield from _section("Blocks from prefill to decode workers", _transfer(plan, deployment))


def _section(title: str, rows: Iterator[tuple[str, str]]) -> Iterator[str]:
    yield ""
    yield title
    for label, text in rows:
        yield f"  {label:<{_LABEL_CHARS}}{text}"


def _workers(plan: Plan) -> Iterator[tuple[str, str]]:
    needed = plan.num_needed
    if plan.num_prefill:
        yield "prefill", f"{plan.num_prefill}, of which the traffic needs {needed[0]}"
        yield "decode", f"{plan.num_decode}, of which the traffic needs {needed[1]}"
        yield "with the scarcer one down", f"{plan.carried_with_one_down:.2f} requests/s at most"
    else:
        yield "decode", "1, which computes prompts, too"
    yield "carried", f"{plan.carried:.2f} requests/s with a third to spare"
    yield "wanted", f"{plan.traffic.rate:g} requests/s"


def _memory(plan: Plan) -> Iterator[tuple[str, str]]:
    worker, traffic = plan.worker, plan.traffic
    kv_bytes = worker.num_kv_tokens * worker.kv_bytes_per_token
    yield "weights", format_bytes(worker.weights.num_bytes)
    yield "activations", f"{format_bytes(worker.activation_bytes)}, an estimate"
    yield "KV cache", f"{format_bytes(kv_bytes)}, {worker.kv_bytes_per_token / 1024:g} KiB a token"
    yield "  of it in tokens", f"{worker.num_kv_tokens:,}"
    yield "  in such requests", f"{worker.num_kv_tokens // traffic.num_tokens:,}"
    yield "max_model_len", f"{worker.max_model_len:,}"
    yield "max_batch", f"{worker.max_batch}"
    if plan.machines.device.is_gpu:
        yield "host memory", f"{format_bytes(plan.host_bytes)}: a staging ring, and 8 GiB"


def _source(plan: Plan) -> str:
    measured = [plan.rates.prefill_measured, plan.rates.decode_measured]
    assumed = (
        f"computed from data sheets: {FLOPS_REACHED:.0%} of the FLOP/s, {BANDWIDTH_REACHED:.0%} "
        f"of the bandwidth" + (f", {RANKS_REACH:.0%} of it by ranks" * (plan.worker.num_ranks > 1))
    )
    if None not in measured:
        return "as you measured them"
    return assumed if measured == [None, None] else f"measured where given, else {assumed}"


def _rates(plan: Plan) -> Iterator[tuple[str, str]]:
    traffic = plan.traffic
    prefill = plan.prefill_rate * traffic.num_computed_tokens
    decode = plan.decode_rate * traffic.num_output_tokens
    yield "prefill of one worker", f"{prefill:,.0f} tokens/s"
    yield "decode of one worker", f"{decode:,.0f} tokens/s with a full batch"
    yield (
        "time to first token",
        f"{plan.ttft_s * 1000:,.0f} ms in the mean, a prompt alone "
        + (f"{plan.prefill_s * 1000:,.0f} ms"),
    )
    if plan.step_s is not None:
        yield "between two tokens", f"{plan.step_s * 1000:,.1f} ms"


def _transfer(plan: Plan, deployment: Deployment) -> Iterator[tuple[str, str]]:
    usual, most = plan.blocks_per_s
    prompt_bytes = plan.traffic.num_prompt_tokens * plan.worker.kv_bytes_per_token
    by_grpc_s = prompt_bytes / GRPC_BYTES_PER_S
    yield "all", f"{_gbit(usual)}, with nothing cached {_gbit(most)}"
    yield "to one decode worker", f"{_gbit(most / plan.num_decode)}, with nothing cached"
    yield "from one prefill worker", f"{_gbit(most / plan.num_prefill)}, with nothing cached"
    yield "a whole prompt", f"{format_bytes(prompt_bytes)}, {by_grpc_s:.2f} s by gRPC"
    share = most / min(plan.num_prefill, plan.num_decode) / GRPC_BYTES_PER_S
    way_out = f"so {deployment.rdma_resource}" if deployment.rdma_resource else "RDMA (--rdma)"
    enough = "enough" if share < 2 / 3 else f"too slow: {way_out}"
    yield "gRPC", f"{enough}; measured 0.84 GB/s a worker, on one machine"


def _gbit(bytes_per_s: float) -> str:
    return f"{bytes_per_s * 8 / 1e9:,.1f} Gbit/s"


def _facts(plan: Plan) -> dict[str, Any]:
    """The plan for programs; the units end the names."""
    worker = plan.worker
    usual, most = plan.blocks_per_s
    return {
        "num_prefill": plan.num_prefill,
        "num_decode": plan.num_decode,
        "num_devices": plan.num_devices,
        "num_needed": dict(zip(("prefill", "decode"), plan.num_needed, strict=True)),
        "carried_per_s": plan.carried,
        "carried_with_one_down_per_s": plan.carried_with_one_down,
        "weight_bytes": worker.weights.num_bytes,
        "activation_bytes": worker.activation_bytes,
        "kv_bytes_per_token": worker.kv_bytes_per_token,
        "num_kv_tokens": worker.num_kv_tokens,
        "max_model_len": worker.max_model_len,
        "max_batch": worker.max_batch,
        "host_bytes": plan.host_bytes if plan.machines.device.is_gpu else None,
        "prefill_requests_per_s": plan.prefill_rate,
        "decode_requests_per_s": plan.decode_rate,
        "ttft_s": plan.ttft_s if plan.ttft_s < float("inf") else None,
        "itl_s": plan.step_s,
        "blocks_bytes_per_s": usual,
        "blocks_uncached_bytes_per_s": most,
        "rates_are": _source(plan),
    }


def _command(arguments: argparse.Namespace) -> str:
    return " ".join(["baton", *sys.argv[1:]]).replace(" --values", "")


def _number(text: str, is_fit: Callable[[float], bool], wanted: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not is_fit(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}")
    return value


def _whole(text: str) -> int:
    return int(_number(text, lambda value: value >= 1 and value.is_integer(), "a whole number"))


def _positive(text: str) -> float:
    return _number(text, lambda value: 0 < value < float("inf"), "a number above 0")


def _part(text: str) -> float:
    return _number(text, lambda value: 0 <= value < 1, "a share from 0 to below 1")


def _share(text: str) -> float:
    return _number(text, lambda value: 0 < value <= 1, "a share above 0, at most 1")

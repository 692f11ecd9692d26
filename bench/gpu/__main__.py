"""`python -m bench.gpu`: everything about the engine on one GPU, in less than ten minutes.

Parts run one after the other; one whose library is missing, or that fails, is noted and the next
goes on. A wrong result is shown as such and makes the exit code 1. Needs `pip install .[worker]`
and Triton, which comes with torch for CUDA. `--dry-run` runs every part in sizes for Triton's
interpreter, to see that it runs at all: its figures mean nothing, and it writes no page.

`python -m bench.gpu handoff` is about two workers on it (`gpu_handoff.py`).
"""

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path

import torch
from triton.errors import TritonError

from bench.gpu.gpu_attention import (
    AttentionPlan,
    Heads,
    measure_decode,
    measure_flashinfer,
    measure_prefill,
    prove_attention,
    sweep_decode,
    sweep_prefill,
)
from bench.gpu.gpu_handoff import main as handoff_main
from bench.gpu.gpu_machine import Rates, Stopwatch, machine_table, measure_rates
from bench.gpu.gpu_report import Table, render, write_run
from bench.gpu.gpu_sampling import SamplingPlan, measure_sampling
from bench.gpu.gpu_staging import measure_staging, measure_vllm_staging
from bench.gpu.gpu_steps import (
    check_invariance,
    check_ways,
    free_memory,
    measure_gaps,
    measure_mixed,
    measure_peer,
    measure_steps,
)
from bench.gpu.gpu_subject import StepPlan, Subject

_COPY_BYTES, _GEMM_SIZE = 4 * 2**30, 8192
# What a kernel, a library of another version or a full memory raises.
_FAILURES = (
    TritonError,
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    AssertionError,
    OSError,
)
_Part = tuple[str, Callable[[], list[Table]]]

DRY_ATTENTION = AttentionPlan(
    heads=Heads(4, 2, 16),
    dtype=torch.float32,
    groups=(2,),
    dims=(16,),
    decode_batches=(1, 1, 2),
    decode_contexts=(20,),
    prefill_tokens=(20,),
    proof_counts=((30, 1), (5, 9)),
)
DRY_STEPS = StepPlan(
    models=("nano",),
    dtype=torch.float32,
    batches=(1, 2),
    context=20,
    prefill_tokens=20,
    num_steps=1,
    mixed=((3, 1),),
    peer_batches=(),
)


def main(argv: Sequence[str]) -> int:
    """Run the parts; 1 when a result was wrong or a part failed, 2 without a GPU."""
    if argv[:1] == ["handoff"]:
        return handoff_main(argv[1:])
    parser = argparse.ArgumentParser(prog="bench.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"), help="folder")
    parser.add_argument("--name", default="gpu", help="of the results: results/NAME.json")
    parser.add_argument("--only", default="", help="parts whose name has this in it")
    parser.add_argument("--limit-s", type=float, default=570.0, help="start no part after it")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args(argv)
    if not (options.dry_run or torch.cuda.is_available()):
        print("bench.gpu needs a GPU that torch can use", file=sys.stderr)
        return 2
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tables: list[Table] = []
    for table in run_parts(
        all_parts(device, is_dry=options.dry_run), options.only, options.limit_s
    ):
        tables.append(table)
        if not options.dry_run:  # after each part: a later one may never end
            write_run(tables, options.out, options.name)
    print(render(tables))
    return int(any(table.errors for table in tables))


def all_parts(device: torch.device, *, is_dry: bool) -> Iterator[_Part]:
    """Names and what to call, in order; what several parts share is made on the way."""
    watch = Stopwatch(device)
    sizes = (2**20, 64) if is_dry else (_COPY_BYTES, _GEMM_SIZE)
    rates = measure_rates(watch, *sizes)
    attention = DRY_ATTENTION if is_dry else AttentionPlan()
    steps = DRY_STEPS if is_dry else StepPlan()
    yield "machine", lambda: [machine_table(watch, rates)]
    yield "attention proof", lambda: [prove_attention(watch, attention)]
    yield "attention decode", lambda: [measure_decode(watch, attention, rates)]
    yield "attention prefill", lambda: [measure_prefill(watch, attention, rates)]
    sampled = SamplingPlan(512, (1, 2), 1) if is_dry else SamplingPlan()
    staged = (2, 3) if is_dry else (32, 96)
    yield "staging", lambda: [measure_staging(watch, *staged)]
    yield "vllm staging", lambda: [measure_vllm_staging(watch, *staged)]
    yield "sampling", lambda: [measure_sampling(watch, sampled, rates)]
    subjects = {name: cache(partial(Subject, name, steps, device)) for name in steps.models}
    for name in steps.models:
        yield from _model_parts(name, subjects[name], watch, rates)
        subjects[name].cache_clear()
    yield "sweep decode", lambda: [sweep_decode(watch, attention)]
    yield "sweep prefill", lambda: [sweep_prefill(watch, attention)]
    yield "flashinfer", lambda: [measure_flashinfer(watch, attention)]
    for name in steps.models:
        yield f"peer {name}", partial(_peer, subjects[name])
        subjects[name].cache_clear()


def _model_parts(
    name: str, subject: Callable[[], Subject], watch: Stopwatch, rates: Rates
) -> Iterator[_Part]:
    yield f"ways {name}", lambda: [check_ways(subject())]
    yield f"steps {name}", lambda: measure_steps(watch, subject(), rates)
    yield f"invariance {name}", lambda: [check_invariance(subject())]
    yield f"mixed {name}", lambda: [measure_mixed(watch, subject())]
    yield f"gaps {name}", lambda: [measure_gaps(watch, subject())]


def _peer(subject: Callable[[], Subject]) -> list[Table]:
    return [measure_peer(subject())]


def run_parts(parts: Iterator[_Part], only: str, limit_s: float) -> Iterator[Table]:
    """The tables of all parts that have run, and an empty one for each that has not."""
    began = time.perf_counter()
    for name, measure in parts:
        if only not in name:
            continue
        started = time.perf_counter()
        if started - began > limit_s:
            yield Table(name, name, [], notes=["Left out: no time was left."])
            continue
        tables = _run_part(name, measure)
        free_memory()
        tables[-1].wall_s = time.perf_counter() - started
        print(f"{name}: {tables[-1].wall_s:.1f} s", file=sys.stderr, flush=True)
        yield from tables


def _run_part(name: str, measure: Callable[[], list[Table]]) -> list[Table]:
    try:
        return measure()
    except ImportError as error:
        return [Table(name, name, [], notes=[f"Left out: {error}."])]
    except _FAILURES as error:
        traceback.print_exc()
        first = str(error).strip().partition("\n")[0]
        return [Table(name, name, [], errors=[f"failed: {type(error).__name__}: {first}"])]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

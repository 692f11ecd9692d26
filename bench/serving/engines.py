"""Whole stacks whose workers run vLLM's engine, beside `vllm serve`: aggregated and split; and a
pair of vLLM's own servers with its NIXL connector, where NIXL is installed.

Each has all cores of the machine: one engine of all threads, or two workers of half of them. All
run at once and take turns, so that a noisy minute hits all of them. Three things are measured:
conversations at several concurrencies; streams with short prompts while long prompts arrive; and
the CPU that a token costs a worker's front.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.contenders import Parity, clean_environment, vllm_python
from bench.machine import describe_machine
from bench.measured_process import run_to_end
from bench.models import ensure_model
from bench.serving import disagg
from bench.serving.nixl_pair import NIXL_PAIR, nixl_folder
from bench.serving.served import ServedBench, ServedPlan
from bench.workload import RequestSize

Record = dict[str, Any]
SERVERS = ("vllm", NIXL_PAIR, "baton on vllm", "baton on vllm, split")
_FRONT_BATCHES = (1, 8, 32)
_SIZE = RequestSize(0, 64, 64)
# Less than what `vllm serve` is told to take at most, with the answer.
_LONG_TOKENS = 1500


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """`num_rounds` runs of each cell; `num_requests` for each client of a run."""

    model: str
    cache: Path
    num_rounds: int = 2
    concurrencies: tuple[int, ...] = (1, 8, 32)
    num_requests: int = 2
    num_long: int = 4
    parity: Parity = field(default_factory=lambda: Parity(2, 2**30))


def run_bench(options: BenchOptions, output: Path, report: Callable[[str], None]) -> None:
    """Measure, and append each record to `output` as soon as it is there. Raises RunnerFailed."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("a") as file:
        for record in _records(options, report):
            file.write(json.dumps(record) + "\n")
            file.flush()


def _records(options: BenchOptions, report: Callable[[str], None]) -> Iterator[Record]:
    yield {"part": "environment", "unix_s": round(time.time()), **describe_machine()}
    folder = ensure_model(options.model, options.cache)
    logs = options.cache / "logs"
    report("the front of a worker")
    for batch in _FRONT_BATCHES:
        yield {"part": "front", **_front_cost(folder, batch, logs)}
    plan = ServedPlan(
        options.model,
        folder,
        [name for name in SERVERS if name != NIXL_PAIR or nixl_folder()],
        list(options.concurrencies),
        _SIZE,
        options.num_requests,
        parity=options.parity,
    )
    with ExitStack() as stack:
        bench = ServedBench(plan, logs, stack)
        for name in plan.engines:
            report(f"starting {name}")
            yield {"part": "served", **bench.start(name)}
        for number in range(options.num_rounds):
            report(f"round {number + 1} of {options.num_rounds}")
            yield from _round(number, options, bench, folder)


def _round(
    number: int, options: BenchOptions, bench: ServedBench, folder: Path
) -> Iterator[Record]:
    for concurrency in options.concurrencies:
        for server in bench.servers:
            yield {"part": "served", **bench.measure(server, concurrency)}
    streams = disagg.BenchOptions(
        options.model, options.cache, num_turns=1, num_long=options.num_long,
        long_tokens=_LONG_TOKENS,
    )  # fmt: skip
    for server in bench.servers:
        with ExitStack() as stack, server.turn():
            measured = disagg.StreamsBench(streams, folder, stack, server).measure(number)
        yield {"part": "disagg", "arrangement": server.name, **measured}


def _front_cost(folder: Path, batch: int, logs: Path) -> Record:
    module = "bench.engine.front_costs"
    argv = [sys.executable, "-m", module, str(vllm_python()), str(folder), str(batch)]
    (cost,) = run_to_end(argv, logs / "front_costs.log", clean_environment())
    return dict(cost)

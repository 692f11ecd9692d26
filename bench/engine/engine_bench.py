"""`python -m bench engine`: which parts to run, in which order, into one file of JSON lines.

Parts: `machine` (what it does at best), `core` (the engine besides the model), `offline` (engines
side by side without servers), `served` (whole stacks side by side over HTTP).
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.contenders import Parity, clean_environment, installed
from bench.engine.offline import OfflinePlan, run_offline
from bench.machine import describe_machine
from bench.measured_process import run_to_end
from bench.model_shape import ModelShape
from bench.models import ensure_model
from bench.serving.served import NO_LIMIT, SERVED, ServedPlan, run_served
from bench.workload import KINDS, SMALL_KINDS

Record = dict[str, Any]
PARTS = ("machine", "core", "offline", "served")
# The model for tests gets short requests.
_SHORT_MODELS = {"nano"}
# Ten requests for each of 32 connections would take a quarter of an hour and more.
_MAX_REQUESTS = {"small": 96}


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The measurements asked for. `engines` empty = all that are installed."""

    parts: tuple[str, ...]
    models: tuple[str, ...]
    batches: tuple[int, ...]
    engines: tuple[str, ...]
    num_rounds: int
    requests_per_client: int
    parity: Parity
    cache: Path

    @property
    def logs(self) -> Path:
        return self.cache / "logs"


def run_bench(options: BenchOptions, output: Path, report: Callable[[str], None]) -> None:
    """Measure, and append each record to `output` as soon as it is there."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("a") as file:
        for record in _records(options, report):
            file.write(json.dumps(record) + "\n")
            file.flush()


def read_records(paths: list[Path]) -> list[Record]:
    """The records of several runs, in order."""
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def _records(options: BenchOptions, report: Callable[[str], None]) -> Iterator[Record]:
    held = {"isa": options.parity.isa} if options.parity.isa else {}
    yield {"part": "environment", "unix_s": round(time.time()), **describe_machine(), **held}
    folders = {name: ensure_model(name, options.cache) for name in options.models}
    if "machine" in options.parts:
        report("memory and matrix rates")
        yield _machine_rates(options, folders)
    if "core" in options.parts:
        for module in ("bench.engine.core_costs", "bench.handoff.relay"):
            report(f"the engine besides the model: {module}")
            for line in _module_lines(module, options):
                yield {"part": "core", **line}
    for model, folder in folders.items():
        if "offline" in options.parts:
            yield from run_offline(_offline_plan(options, model, folder), options.logs, report)
        if "served" in options.parts:
            yield from run_served(_served_plan(options, model, folder), options.logs, report)
    if "machine" in options.parts and len(options.parts) > 1:
        report("memory and matrix rates, again")
        yield _machine_rates(options, folders)


def _machine_rates(options: BenchOptions, folders: dict[str, Path]) -> Record:
    sizes = [str(ModelShape.of_folder(folder).weight_bytes) for folder in folders.values()]
    threads = str(options.parity.num_threads)
    (rates,) = _module_lines("bench.machine_rates", options, threads, *sizes)
    return {"part": "machine", **rates}


def _module_lines(module: str, options: BenchOptions, *arguments: str) -> list[Any]:
    argv = [sys.executable, "-m", module, *arguments]
    return run_to_end(argv, options.logs / f"{module.split('.')[-1]}.log", clean_environment())


def _offline_plan(options: BenchOptions, model: str, folder: Path) -> OfflinePlan:
    return OfflinePlan(
        model,
        folder,
        engines=_engines(options, installed()),
        batches=list(options.batches),
        num_rounds=options.num_rounds,
        parity=options.parity,
        kinds=SMALL_KINDS if model in _SHORT_MODELS else KINDS,
    )


def _served_plan(options: BenchOptions, model: str, folder: Path) -> ServedPlan:
    kinds = SMALL_KINDS if model in _SHORT_MODELS else KINDS
    return ServedPlan(
        model,
        folder,
        engines=_engines(options, [name for name in installed() if name in SERVED]),
        concurrencies=list(options.batches),
        size=kinds["full"],
        requests_per_client=options.requests_per_client,
        max_requests=_MAX_REQUESTS.get(model, NO_LIMIT),
        parity=options.parity,
    )


def _engines(options: BenchOptions, there: list[str]) -> list[str]:
    return [name for name in there if not options.engines or name in options.engines]

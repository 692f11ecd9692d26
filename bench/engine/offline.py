"""Engines without servers, side by side: the same prompts, cell by cell, taking turns.

All runners are loaded before the first task and stand still while another one works, so that a
noisy minute hits all of them and none disturbs another. A cell is (model, kind of request, batch);
its best round counts.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.contenders import POOL_NAME, Contender, Parity, clean_environment, offline_contender
from bench.machine import CpuWatch, tree_memory_bytes
from bench.measured_process import Runner, RunnerFailed
from bench.workload import KINDS, RequestSize, WordList

Record = dict[str, Any]
_WARM_UP_BATCH = 2
_WARM_UP_OUTPUT = 4
_WARM_UP_ROUNDS = 2
# A cell is run again when something else took more than this of a core from its best run ...
_NOISY_CPU = 0.1
# ... and a round of it is over soon; at most so many times as often as asked for.
_SOON_S = 10.0
_MAX_ROUNDS_FACTOR = 2


@dataclass(frozen=True, slots=True)
class OfflinePlan:
    """The runs: every engine on every cell, `num_rounds` times each."""

    model: str
    folder: Path
    engines: list[str]
    batches: list[int]
    num_rounds: int = 3
    # An engine runs a cell as often as fits into this time; not at all when one run would not.
    max_cell_s: float = 200.0
    parity: Parity = field(default_factory=Parity)
    kinds: Mapping[str, RequestSize] = field(default_factory=lambda: KINDS)


def run_offline(plan: OfflinePlan, logs: Path, report: Callable[[str], None]) -> Iterator[Record]:
    """One record per (engine, cell), as soon as it is measured."""
    common = {"part": "offline", "model": plan.model}
    with ExitStack() as stack:
        engines = []
        for name in plan.engines:
            report(f"{plan.model}: loading {name}")
            contender = offline_contender(name, plan.folder, plan.parity)
            try:
                engines.append(_Engine.load(contender, logs, stack))
            except RunnerFailed as error:
                yield common | {"engine": name, "error": str(error)}
        words = WordList.of_tokenizer(plan.folder / "tokenizer.json")
        for record in _Bench(plan, words, engines, report).cells():
            yield common | record


class _Engine:
    """A loaded runner, and how long one of its runs took per request of a kind."""

    def __init__(self, name: str, runner: Runner, ready: Record, load_s: float) -> None:
        self.name = name
        self.runner = runner
        self.ready = ready
        self.load_s = load_s
        self.has_failed = False
        self._s_per_request: dict[str, float] = {}

    @classmethod
    def load(cls, contender: Contender, logs: Path, stack: ExitStack) -> "_Engine":
        started = time.perf_counter()
        log = logs / f"offline-{contender.name}.log"
        runner = Runner(contender.argv, log, {**clean_environment(), **contender.environment})
        stack.callback(runner.stop)
        ready = runner.read()
        runner.pause()
        return cls(contender.name, runner, ready, time.perf_counter() - started)

    def expected_s(self, kind: str, batch: int) -> float:
        """The time of a run if batching brought nothing; 0 = not known yet."""
        return self._s_per_request.get(kind, 0.0) * batch

    def run(self, prompts: list[list[int]], num_output: int) -> Record:
        """One run. Raises RunnerFailed."""
        watch = CpuWatch(self.runner.pid)
        answer = self.runner.ask({"prompts": prompts, "num_output_tokens": num_output})
        wall_s = float(answer["wall_s"])
        if answer["num_output_tokens"] != len(prompts) * num_output:
            raise RunnerFailed(f"{self.name} made {answer['num_output_tokens']} tokens")
        return {"wall_s": wall_s, "others_s": watch.others_s()}

    def remember(self, kind: str, s_per_request: float) -> None:
        self._s_per_request[kind] = s_per_request


class _Bench:
    """All cells of one model."""

    def __init__(
        self,
        plan: OfflinePlan,
        words: WordList,
        engines: list[_Engine],
        report: Callable[[str], None],
    ) -> None:
        self._plan = plan
        self._words = words
        self._engines = engines
        self._report = report
        self._num_prompts = 0

    def cells(self) -> Iterator[Record]:
        """Every cell's records, after warm-up runs that make no record."""
        for size in self._plan.kinds.values():
            short = replace(size, num_output=_WARM_UP_OUTPUT)
            for _ in range(_WARM_UP_ROUNDS):
                self._round(self._engines, short, _WARM_UP_BATCH)
        for batch in self._plan.batches:
            for kind in self._plan.kinds:
                self._report(f"{self._plan.model}: batch {batch}, {kind}")
                yield from self._cell(kind, batch)

    def _cell(self, kind: str, batch: int) -> Iterator[Record]:
        plan = self._plan
        runs: dict[str, list[Record]] = {engine.name: [] for engine in self._engines}
        for number in range(_MAX_ROUNDS_FACTOR * plan.num_rounds):
            if number >= plan.num_rounds and not _is_worth_repeating(runs.values()):
                break
            engines = [e for e in self._engines if self._has_time(e, kind, batch, runs[e.name])]
            for name, run in self._round(engines, plan.kinds[kind], batch).items():
                runs[name].append(run)
        for engine in self._engines:
            cell = {"engine": engine.name, "kind": kind, "batch": batch}
            if runs[engine.name]:
                engine.remember(kind, _best(runs[engine.name])["wall_s"] / batch)
                yield cell | self._summary(engine, kind, batch, runs[engine.name])
            elif not engine.has_failed:
                yield cell | {"skipped": f"would take {engine.expected_s(kind, batch):.0f} s"}

    def _has_time(self, engine: _Engine, kind: str, batch: int, runs: list[Record]) -> bool:
        """One more run of the cell stays within `max_cell_s`."""
        spent_s = sum(run["wall_s"] for run in runs)
        next_s = runs[-1]["wall_s"] if runs else engine.expected_s(kind, batch)
        return bool(spent_s + next_s <= self._plan.max_cell_s)

    def _round(self, engines: list[_Engine], size: RequestSize, batch: int) -> dict[str, Record]:
        """The same fresh prompts for each engine in turn; one run of each that works."""
        names = [f"r{self._num_prompts + index}" for index in range(batch)]
        self._num_prompts += batch
        prompts = [self._words.prompt_ids(name, size) for name in names]
        runs = {}
        for engine in engines:
            if engine.has_failed:
                continue
            try:
                runs[engine.name] = engine.run(prompts, size.num_output)
            except RunnerFailed as error:
                self._report(f"{engine.name}: {error}")
                engine.has_failed = True
        return runs

    def _summary(self, engine: _Engine, kind: str, batch: int, runs: list[Record]) -> Record:
        size = self._plan.kinds[kind]
        best = _best(runs)
        memory_bytes, pool_bytes = tree_memory_bytes(engine.runner.pid, POOL_NAME)
        return {
            "best_s": best["wall_s"],
            "all_s": [run["wall_s"] for run in runs],
            "prompt_tokens_per_s": batch * size.num_prompt / best["wall_s"],
            "output_tokens_per_s": batch * size.num_output / best["wall_s"],
            "others_cpu": _others_cpu(best),
            "num_prompt": size.num_prompt,
            "num_output": size.num_output,
            "memory_bytes": memory_bytes,
            "pool_bytes": pool_bytes,
            "load_s": engine.load_s,
            **{key: engine.ready[key] for key in ("versions", "threads")},
        }


def _best(runs: Iterable[Record]) -> Record:
    return min(runs, key=lambda run: float(run["wall_s"]))


def _others_cpu(run: Record) -> float:
    """Cores that others took."""
    return float(run["others_s"] / run["wall_s"])


def _is_worth_repeating(runs: Iterable[list[Record]]) -> bool:
    best = [_best(of_engine) for of_engine in runs if of_engine]
    is_noisy = any(_others_cpu(run) > _NOISY_CPU for run in best)
    return is_noisy and sum(run["wall_s"] for run in best) < _SOON_S

"""Runs the parts of `python -m bench router` and appends JSON lines.

`replay`: traces through the router and through other placements.
Figures of the replay do not depend on the machine: they come from virtual time and a seed.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from bench.router.policies import POLICIES
from bench.router.replay import Replay, run_replay
from bench.router.traces import Trace, load_traces, synthetic_traces

PARTS = ("replay",)
NUM_QUANTILES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """A run: without a folder of traces, synthetic ones are made."""

    parts: tuple[str, ...]
    traces: Path | None
    duration_s: float
    num_workers: int
    load: float
    seed: int
    is_quick: bool = False


def run_bench(options: BenchOptions, output: Path, say: Callable[[str], None]) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("a") as file:
        for record in _records(options):
            file.write(json.dumps(record) + "\n")
            file.flush()
            say(_line(record))


def _records(options: BenchOptions) -> Iterator[dict[str, Any]]:
    if "replay" in options.parts:
        for trace in make_traces(options):
            for policy in POLICIES:
                yield replay_record(
                    Replay(trace, policy, options.num_workers, options.load, options.seed)
                )


def make_traces(options: BenchOptions) -> list[Trace]:
    random = Random(options.seed)
    if options.traces is None:
        return synthetic_traces(random, options.duration_s)
    return load_traces(options.traces, random, options.duration_s)


def replay_record(replay: Replay) -> dict[str, Any]:
    """Run one replay; returns its record."""
    outcome = run_replay(replay)
    quantiles = [outcome.ttft_quantile_s(n / NUM_QUANTILES) for n in range(NUM_QUANTILES + 1)]
    return {
        "part": "replay",
        "trace": replay.trace.name,
        "policy": replay.policy,
        "num_workers": replay.num_workers,
        "load": replay.load,
        "seed": replay.seed,
        "duration_s": round(replay.trace.duration_s, 3),
        "prefill_tokens_per_s": round(replay.machine.prefill_tokens_per_s, 1),
        "num_requests": outcome.num_requests,
        "num_shed": outcome.num_shed,
        "hit_ratio": round(outcome.hit_ratio, 5),
        "ttft_mean_s": round(outcome.mean_ttft_s, 5),
        "ttft_p99_s": round(outcome.ttft_quantile_s(0.99), 5),
        "ttft_quantiles_s": [round(each, 4) for each in quantiles],
        "imbalance": round(outcome.imbalance, 4),
    }


def _line(record: dict[str, Any]) -> str:
    return (
        f"{record['trace']:18} {record['policy']:18} hit {record['hit_ratio']:6.1%}"
        f"  TTFT {record['ttft_mean_s']:8.3f} s, p99 {record['ttft_p99_s']:8.3f} s"
        f"  max/mean {record['imbalance']:.2f}  shed {record['num_shed']}"
    )

"""Runs the parts of `python -m bench router` and appends JSON lines.

`replay`: traces through the router and through other placements, on virtual time: its figures are
the same on every machine. `bursts`: those without shared prompts again, at BURST_LOAD. `picks`: CPU
times of a pick by the size of the fleet, on this machine. `routers`: the CPU time of two active
routers beside that of one.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from bench.router.active_routers import routers_record
from bench.router.picks import NUM_WORKERS, PROMPT_TOKENS, index_record, pick_record
from bench.router.policies import POLICIES
from bench.router.replay import Replay, most_in_time_tokens, run_replay
from bench.router.traces import Trace, load_traces, synthetic_traces

PARTS = ("replay", "bursts", "picks", "routers")
# Traffic in bursts, as a multiple of what the fleet can do; clients leave after BURST_DUE_S.
BURST_TRACES = ("azure code", "azure chat", "synthetic bursts")
BURST_LOAD = 2.5
BURST_DUE_S = 30.0
NUM_QUANTILES = 100
NUM_ROUNDS = 3
# Of each worker's blocks, for the index's memory.
INDEX_SIZES = (27_000, 40_000)
INDEX_WORKERS = 20


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
    if "bursts" in options.parts:
        for trace in make_traces(options):
            if trace.name in BURST_TRACES:
                yield from _burst_records(trace, options)
    if "picks" in options.parts:
        sizes, num_picks = (NUM_WORKERS[:2], 100) if options.is_quick else (NUM_WORKERS, 500)
        for num_workers in sizes:
            yield pick_record(num_workers, num_picks, options.seed)
        for num_own in INDEX_SIZES[:1] if options.is_quick else INDEX_SIZES:
            yield index_record(INDEX_WORKERS, num_own, options.seed)

    if "routers" in options.parts:
        yield from asyncio.run(_routers_records(800 if options.is_quick else 4_000, options))


async def _routers_records(num_picks: int, options: BenchOptions) -> list[dict[str, Any]]:
    """One router, two peers and two that are not in turn; of each the round in which the machine
    was least disturbed."""
    rounds = []
    for _ in range(NUM_ROUNDS):
        one = await routers_record(1, num_picks, options.seed)
        two, alone = [
            await routers_record(2, num_picks, options.seed, one["stretch"], are_peers=are_peers)
            for are_peers in (True, False)
        ]
        rounds.append((one, two, alone))
    return [
        max(records, key=lambda record: float(record["picks_per_s"]))
        for records in zip(*rounds, strict=True)
    ]


def _burst_records(trace: Trace, options: BenchOptions) -> Iterator[dict[str, Any]]:
    for policy in POLICIES:
        replay = Replay(
            trace, policy, options.num_workers, BURST_LOAD, options.seed, due_s=BURST_DUE_S
        )
        yield burst_record(replay)


def burst_record(replay: Replay) -> dict[str, Any]:
    """Run one replay with more load than the fleet can do; returns its record."""
    outcome = run_replay(replay)
    return {
        "part": "bursts",
        "trace": replay.trace.name,
        "policy": replay.policy,
        "num_workers": replay.num_workers,
        "load": replay.load,
        "seed": replay.seed,
        "due_s": replay.due_s,
        "duration_s": round(replay.trace.duration_s, 3),
        "num_requests": outcome.num_requests,
        "num_shed": outcome.num_shed,
        "num_left": outcome.num_requests - outcome.num_shed - len(outcome.ttft_s),
        "goodput": round(outcome.num_in_time_tokens / most_in_time_tokens(replay), 4),
        "ttft_p50_s": round(outcome.ttft_quantile_s(0.5), 4),
        "ttft_p99_s": round(outcome.ttft_quantile_s(0.99), 4),
    }


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
    if record["part"] == "bursts":
        return (
            f"{record['trace']:18} {record['policy']:18} {record['load']:.1f}x: goodput"
            f" {record['goodput']:.1%}  shed {record['num_shed']}  left {record['num_left']}"
        )
    if record["part"] == "index":
        return f"{record['num_entries']:,} entries of {record['bytes_per_entry']:.0f} bytes"
    if record["part"] == "routers":
        peers = "peers" if record["are_peers"] else "no peers"
        return (
            f"{record['num_routers']} routers, {peers}, {record['prompt_tokens']:,} tokens:"
            f" {record['picks_per_s']:,.0f}/s fill a core of each"
        )
    if record["part"] == "picks":
        picks = (f"{n:,}: {record[f'pick_{n}_p50_s'] * 1e3:.2f} ms" for n in PROMPT_TOKENS)
        return f"{record['num_workers']} workers, pick of {', '.join(picks)}"
    return (
        f"{record['trace']:18} {record['policy']:18} hit {record['hit_ratio']:6.1%}"
        f"  TTFT {record['ttft_mean_s']:8.3f} s, p99 {record['ttft_p99_s']:8.3f} s"
        f"  max/mean {record['imbalance']:.2f}  shed {record['num_shed']}"
    )

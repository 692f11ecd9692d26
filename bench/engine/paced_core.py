"""`python -m bench.engine.paced_core FDS OPTIONS`: a core whose model takes a stated time per step.

When it ends it writes to `--result` what share of its time went by between two runs of the runner.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from baton.engine.process.core import CoreLink, serve
from baton.engine.step.engine import Engine, EngineConfig
from baton.system.clock import SystemClock
from bench.engine.null_runner import NullRunner
from bench.measured_process import put_ahead

_MAX_NOTED_RUNS = 10_000


def main(argv: Sequence[str]) -> None:
    link, rest = CoreLink.from_argv(argv)
    options = _parse(rest)
    put_ahead(os.getpid())
    if options.cpus:
        os.sched_setaffinity(0, options.cpus)
    runner = NullRunner(step_s=options.step_s, max_noted_runs=_MAX_NOTED_RUNS)
    config = EngineConfig(
        model_fp="bench",
        model_name="bench",
        model_revision="1",
        num_blocks=options.num_blocks,
        max_num_seqs=options.max_num_seqs,
    )
    serve(link, Engine(config, runner, SystemClock()))
    options.result.write_text(json.dumps(describe_gaps(runner.runs[options.skip_runs :])))


def describe_gaps(runs: list[tuple[float, float]]) -> dict[str, float]:
    """Summarize consecutive runs (began, ended): their times, and those between them."""
    gaps = sorted(after[0] - before[1] for before, after in pairwise(runs))
    total_s = runs[-1][1] - runs[0][0]
    return {
        "num_steps": len(runs),
        "steps_per_s": (len(runs) - 1) / (runs[-1][0] - runs[0][0]),
        "gap_share": sum(gaps) / total_s,
        "gap_p50_s": gaps[len(gaps) // 2],
        "gap_p99_s": gaps[len(gaps) * 99 // 100],
    }


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--step-s", type=float, required=True)
    parser.add_argument("--num-blocks", type=int, required=True)
    parser.add_argument("--max-num-seqs", type=int, required=True)
    parser.add_argument("--skip-runs", type=int, required=True, help="runs before the measurement")
    parser.add_argument("--cpus", type=int, nargs="*", default=[], help="stay on these")
    parser.add_argument("--result", type=Path, required=True)
    return parser.parse_args(argv)


if __name__ == "__main__":
    main(sys.argv[1:])

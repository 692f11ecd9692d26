"""Measures decode steps beside programs that take the CPUs.

`python -m bench.engine.noise --model baton-demo,tiny` prints a JSON line for each model and number
of threads: steps a second alone and beside busy loops, in turns, and their ratio to the fair share,
which is what the kernel would give so many equal threads. The loops are children of this process:
where the kernel groups processes by session, they share its group.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from baton.demo_model import demo_model_path
from baton.model.load.load import LoadOptions, load_model
from baton.model.torch_runner import TorchRunner
from baton.system.cores import num_available_cores
from bench.engine.forced import ForcedTexts
from bench.models import cache_folder, ensure_model

_BATCH = 8
_CONTEXT_TOKENS = 100
_WINDOW_S = 3.0
_LOOP = "print(flush=True)\nwhile True: pass"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.engine.noise", description=__doc__)
    parser.add_argument("--model", default="baton-demo", help="several: with commas")
    parser.add_argument("--threads", default="1,2", help="several: with commas")
    parser.add_argument("--loops", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    for name in arguments.model.split(","):
        demo = name == "baton-demo"
        folder = demo_model_path() if demo else ensure_model(name, cache_folder())
        for num_threads in map(int, arguments.threads.split(",")):
            record = measure(folder, num_threads, arguments.loops, arguments.rounds)
            print(json.dumps({"measure": "noise", "model": name, **record}), flush=True)


def measure(folder: Path, num_threads: int, num_loops: int, num_rounds: int) -> dict[str, object]:
    """Steps a second alone and beside the loops: the median of windows in turns."""
    torch.set_num_threads(num_threads)
    runner = TorchRunner(load_model(str(folder), LoadOptions(dtype="bfloat16")))
    numbers = np.random.default_rng(0)
    texts = numbers.integers(0, runner.vocab_size, (_BATCH, _CONTEXT_TOKENS + 1))
    forced = ForcedTexts(runner, texts)
    forced.step_s([_CONTEXT_TOKENS] * _BATCH, 0)
    alone, beside = [], []
    for _ in range(num_rounds):
        alone.append(steps_per_s(forced))
        with busy_loops(num_loops):
            beside.append(steps_per_s(forced))
    share = statistics.median(beside) / statistics.median(alone)
    fair_share = min(1.0, num_available_cores() / (num_threads + num_loops))
    return {
        "threads": num_threads,
        "loops": num_loops,
        "alone_per_s": alone,
        "beside_per_s": beside,
        "of_fair_share": share / fair_share,
    }


def steps_per_s(forced: ForcedTexts) -> float:
    """Over a window; each step decodes one token of each text."""
    num_steps, began_s = 0, time.monotonic()
    while (elapsed_s := time.monotonic() - began_s) < _WINDOW_S:
        forced.step_s([1] * _BATCH, _CONTEXT_TOKENS)
        num_steps += 1
    return num_steps / elapsed_s


@contextmanager
def busy_loops(num_loops: int) -> Iterator[None]:
    """So many processes compute until the end."""
    argv = [sys.executable, "-S", "-c", _LOOP]
    loops = [subprocess.Popen(argv, stdout=subprocess.PIPE) for _ in range(num_loops)]
    try:
        for loop in loops:
            assert loop.stdout is not None
            loop.stdout.readline()
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.communicate()


if __name__ == "__main__":
    main()

"""Programs that take the CPUs, and the share of the CPUs that is fair beside them."""

import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from baton.demo_model import demo_model_path
from baton.system.cores import num_available_cores
from bench.models import cache_folder, ensure_model

_LOOP = "print(flush=True)\nwhile True: pass"


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


def summary(
    alone: Sequence[float], beside: Sequence[float], num_threads: int, num_loops: int
) -> dict[str, object]:
    """The medians' ratio, beside the share that is fair."""
    share = statistics.median(beside) / statistics.median(alone)
    fair_share = min(1.0, num_available_cores() / (num_threads + num_loops))
    return {
        "threads": num_threads,
        "loops": num_loops,
        "alone_per_s": [round(rate, 2) for rate in alone],
        "beside_per_s": [round(rate, 2) for rate in beside],
        "of_fair_share": round(share / fair_share, 2),
    }


def folder_of(model: str) -> Path:
    """The demo's model, or one of those that are made for measurements."""
    if model == "baton-demo":
        return demo_model_path()
    return ensure_model(model, cache_folder())

"""Sampling on a GPU: wall time from logits on the device to tokens in host memory."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np
import torch

from baton.engine.protocol.batch import SampleRow
from baton.engine.protocol.messages import SamplingParams
from baton.model.gpu.triton.sampling import DEVICE_OPS
from baton.model.sampling.sampler import sample
from bench.gpu.gpu_machine import Rates, Stopwatch
from bench.gpu.gpu_report import Table

_SETTINGS: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "temperature 1, the API's default": {"temperature": 1.0},
    "top-p 0.9": {"temperature": 1.0, "top_p": 0.9},
    "top-k 20, top-p 0.8, temperature 0.7": {"temperature": 0.7, "top_p": 0.8, "top_k": 20},
}
# A row of a language model's logits: a few tokens far above a wide crowd.
_SCALE, _NUM_HIGH, _HIGH = 2.0, 40, 12.0
_MAX_UNEQUAL = 0.01  # of the tokens: sums and logarithms are rounded otherwise than on a CPU


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """The measurements; the defaults are for a large GPU."""

    vocab_size: int = 128256
    num_rows: tuple[int, ...] = (1, 32, 256)
    num_runs: int = 20


@torch.inference_mode()
def measure_sampling(watch: Stopwatch, plan: SamplingPlan, rates: Rates) -> Table:
    """Time each setting, and check tokens against those of the CPU."""
    vocab_size, num_runs = plan.vocab_size, plan.num_runs
    columns = [
        "rows ask for",
        *(f"ms of {number} rows" for number in plan.num_rows),
        "as on the CPU",
    ]
    table = Table("sampling", f"Sampling from {vocab_size} logits", columns)
    for name, settings in _SETTINGS.items():
        times, shares = [], []
        for number in plan.num_rows:
            rows = _rows(number, settings)
            logits = _logits(number, vocab_size)
            there = logits.to(watch.device)
            times.append(_ms(watch, partial(DEVICE_OPS.sample, there, rows), num_runs))
            if number <= plan.num_rows[1]:
                shares.append((DEVICE_OPS.sample(there, rows) == sample(logits, rows)).mean())
        share = float(min(shares))
        table.rows.append([name, *times, share])
        if share < 1 - _MAX_UNEQUAL:
            table.errors.append(f"{name}: only {share:.2%} of the tokens are as on the CPU")
    table.rows.append(["masks of structured output", *_mask_ms(watch, plan), None])
    two_passes = [2 * 4 * number * vocab_size / rates.read_bytes_per_s for number in plan.num_rows]
    table.rows.append(["limit: two passes", *(1e3 * each for each in two_passes), None])
    return table


def _mask_ms(watch: Stopwatch, plan: SamplingPlan) -> list[float]:
    times, vocab_size = [], plan.vocab_size
    for number in plan.num_rows:
        there = _logits(number, vocab_size).to(watch.device)
        words = np.random.default_rng(0).integers(-(2**31), 2**31, (number, -(-vocab_size // 32)))
        call = partial(DEVICE_OPS.forbid, there, range(number), words.astype(np.int32))
        times.append(_ms(watch, call, plan.num_runs))
    return times


def _ms(watch: Stopwatch, call: Callable[[], object], num_runs: int) -> float:
    def done() -> None:
        call()
        if watch.is_gpu:
            torch.cuda.synchronize()

    watch.wall_seconds(done, min(3, num_runs))
    return median(watch.wall_seconds(done, num_runs)) * 1e3


def _rows(number: int, settings: dict[str, float]) -> list[SampleRow]:
    return [
        SampleRow(i, SamplingParams(max_tokens=1, seed=i, **settings), 0, 7)  # type: ignore[arg-type]
        for i in range(number)
    ]


def _logits(number: int, vocab_size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(number)
    logits = torch.randn(number, vocab_size, generator=generator) * _SCALE
    num_high = min(_NUM_HIGH, vocab_size // 2)
    logits[:, :num_high] += _HIGH * torch.rand(number, num_high, generator=generator)
    return logits

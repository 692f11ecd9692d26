"""The machine of a GPU run: what it is, how fast it copies and multiplies, and a stopwatch for it.

The stopwatch captures what it measures as a CUDA graph, so that launches cost nothing, and wipes
the cache before each run. Without a GPU it is an ordinary one: for dry runs, whose figures mean
nothing.
"""

import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

import torch

from bench.gpu.gpu_report import Table

PACKAGES = ("torch", "triton", "transformers", "flashinfer-python", "numpy")
_CACHE_BYTES = 256 * 2**20  # more than any cache of a GPU
_BUDGET_S = 0.25
_MAX_RUNS = 200


class Stopwatch:
    """Seconds of calls that work on one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.is_gpu = device.type == "cuda"
        size = _CACHE_BYTES if self.is_gpu else 0
        self._wiped = torch.empty(size, dtype=torch.uint8, device=device)

    @torch.inference_mode()
    def seconds(self, call: Callable[[], object], *, is_cold: bool = True) -> float:
        """The median of many runs on the device, each with an empty cache unless not `is_cold`."""
        if not self.is_gpu:
            started = time.perf_counter()
            call()
            return time.perf_counter() - started
        replay = self._captured(call)
        once = self._run(replay, is_cold)
        num_runs = max(5, min(_MAX_RUNS, int(_BUDGET_S / max(once, 1e-6))))
        return statistics.median(self._run(replay, is_cold) for _ in range(num_runs))

    def wall_seconds(self, call: Callable[[], object], num_runs: int) -> list[float]:
        """Each of so many runs as the caller sees it, in order; the device is idle at the end."""
        if self.is_gpu:
            torch.cuda.synchronize()
        durations = []
        for _ in range(num_runs):
            started = time.perf_counter()
            call()
            durations.append(time.perf_counter() - started)
        if self.is_gpu:
            torch.cuda.synchronize()
        return durations

    def _captured(self, call: Callable[[], object]) -> Callable[[], object]:
        for _ in range(2):  # compiles, chooses algorithms
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                call()
        except RuntimeError:
            torch.cuda.synchronize()
            return call  # what cannot be captured is measured with its launches
        return graph.replay

    def _run(self, call: Callable[[], object], is_cold: bool) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        if is_cold:
            self._wiped.zero_()
        start.record()
        call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3


@dataclass(frozen=True, slots=True)
class Rates:
    """The best rates of the machine."""

    copy_bytes_per_s: float  # read and written, in device memory
    read_bytes_per_s: float  # the faster of that and of a sum
    flops: float  # bfloat16 products


def measure_rates(watch: Stopwatch, num_bytes: int, gemm_size: int) -> Rates:
    """A copy and a sum of `num_bytes`, and a product of two square matrices, of random data."""
    device = watch.device
    source = torch.randint(0, 255, (num_bytes,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_rate = 2 * num_bytes / watch.seconds(lambda: target.copy_(source))
    numbers = source.view(torch.int32)
    read_rate = num_bytes / watch.seconds(lambda: numbers.amax())
    left, right = (torch.randn(gemm_size, gemm_size, device=device).bfloat16() for _ in range(2))
    gemm_s = watch.seconds(lambda: left @ right)
    return Rates(copy_rate, max(copy_rate, read_rate), 2.0 * gemm_size**3 / gemm_s)


def machine_table(watch: Stopwatch, rates: Rates) -> Table:
    """Versions and rates; no host names or paths."""
    table = Table("machine", "Machine", ["what", "value"])
    if watch.is_gpu:
        properties = torch.cuda.get_device_properties(0)
        table.rows.append(["GPU", properties.name])
        table.rows.append(["GPU memory, GiB", properties.total_memory / 2**30])
        table.rows.append(["CUDA", torch.version.cuda])
    table.rows.append(["Python", platform.python_version()])
    for name in PACKAGES:
        try:
            table.rows.append([name, metadata.version(name)])
        except metadata.PackageNotFoundError:
            table.rows.append([name, None])
    table.rows.append(["device copy, GB/s read and written", rates.copy_bytes_per_s / 1e9])
    table.rows.append(["device read, GB/s", rates.read_bytes_per_s / 1e9])
    table.rows.append(["bfloat16 product, TFLOP/s", rates.flops / 1e12])
    return table

"""Measures how fast this machine reads memory and multiplies in bfloat16, at best.

`python -m bench.machine_rates THREADS BYTES...` prints one JSON line. BYTES are buffer sizes,
such as a model's weights: a small model's fit into a cache, which is faster than memory.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence

import torch

_ROUNDS = 9
_COLUMNS = 4096
_GEMM_SIZES = ((1024, 1024, 3072), (2048, 2048, 2048), (4096, 4096, 4096))


def main(argv: Sequence[str]) -> None:
    threads, *sizes = map(int, argv)
    torch.set_num_threads(threads)
    rates = {
        "threads": threads,
        "flops": max(_gemm_flops(*size) for size in _GEMM_SIZES),
        "read_bytes_per_s": {str(size): _read_rate(size) for size in sizes},
    }
    print(json.dumps(rates))


@torch.inference_mode()
def _read_rate(num_bytes: int) -> float:
    """Bytes of a buffer per second, read by whichever operation is fastest."""
    rows = torch.ones(num_bytes // 4 // _COLUMNS, _COLUMNS)
    flat, vector = rows.view(-1), torch.ones(_COLUMNS)
    ways: list[Callable[[], torch.Tensor]] = [
        lambda: flat.sum(),
        lambda: torch.dot(flat, flat),
        lambda: rows @ vector,
    ]
    return flat.nbytes / min(_best_s(way) for way in ways)


@torch.inference_mode()
def _gemm_flops(num_rows: int, num_inner: int, num_columns: int) -> float:
    left = torch.randn(num_rows, num_inner).bfloat16()
    right = torch.randn(num_columns, num_inner).bfloat16()
    seconds = _best_s(lambda: torch.nn.functional.linear(left, right))
    return 2.0 * num_rows * num_inner * num_columns / seconds


def _best_s(function: Callable[[], torch.Tensor]) -> float:
    function()
    best_s = float("inf")
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        function()
        best_s = min(best_s, time.perf_counter() - started)
    return best_s


if __name__ == "__main__":
    main(sys.argv[1:])

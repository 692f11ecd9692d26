"""Blocks between a GPU's cache and the staging ring in host memory that the front shares."""

from functools import partial
from statistics import median

import numpy as np
import torch

from baton.engines.vllm.ranks.pages import Heads, RankBlocks
from baton.model.gpu.block_staging import BlockStaging
from baton.model.tensors.kv_pool import KVPool
from baton.model.tensors.side_stream import side_stream
from baton.wire.kv_spec import KVSpec
from bench.gpu.gpu_machine import Stopwatch
from bench.gpu.gpu_report import Cell, Table

_NUM_RUNS = 5
_COLUMNS = ("direction", "ms", "GB/s")
# Where layers, blocks, heads, tokens and content lie in memory.
_VLLM_ORDERS = {"LBHNC": (0, 1, 2, 3, 4), "LBNHC": (0, 1, 3, 2, 4)}


@torch.inference_mode()
def measure_staging(watch: Stopwatch, num_layers: int, num_moved: int) -> Table:
    """Time the upload and the download of a prompt's blocks, scattered in a pool."""
    spec = KVSpec.of_layers(16, [(8, 128, 128, "bfloat16")] * num_layers)
    num_blocks = 4 * num_moved
    num_bytes = num_blocks * spec.row_bytes
    pool = KVPool(spec, torch.zeros(num_bytes, dtype=torch.uint8, device=watch.device))
    ring = memoryview(bytearray(num_moved * spec.row_bytes))
    staging = BlockStaging.of_pool(pool, ring, side_stream(watch.device))
    table = Table("staging", f"Staging of {_shown(num_moved, spec)}", _COLUMNS)
    table.rows = _timed(watch, staging, num_moved, num_blocks, num_moved * spec.row_bytes)
    return table


@torch.inference_mode()
def measure_vllm_staging(watch: Stopwatch, num_layers: int, num_moved: int) -> Table:
    """The same for a cache as vLLM keeps it, in two of its orders."""
    spec = KVSpec.of_layers(16, [(8, 128, 128, "bfloat16")] * num_layers)
    num_blocks = 4 * num_moved
    table = Table("vllm staging", f"Staging of {_shown(num_moved, spec)} of vLLM's", _COLUMNS)
    for order, places in _VLLM_ORDERS.items():
        shape = [(num_layers, num_blocks, 8, 16, 256)[place] for place in places]
        cache = torch.zeros(shape, dtype=torch.bfloat16, device=watch.device)
        layers = cache.permute([places.index(axis) for axis in range(5)])
        heads = Heads.of_rank(0, 1, 8)
        blocks = RankBlocks({str(n): layer for n, layer in enumerate(layers)}, heads)
        ring = blocks.rows_of(memoryview(bytearray(num_moved * spec.row_bytes)), num_moved)
        staging = BlockStaging(blocks, ring, side_stream(watch.device))
        num_bytes = num_moved * spec.row_bytes
        for direction, *times in _timed(watch, staging, num_moved, num_blocks, num_bytes):
            table.rows.append([f"{order}, {direction}", *times])
    return table


def _shown(num_moved: int, spec: KVSpec) -> str:
    return f"{num_moved} blocks of {spec.row_bytes / 2**20:.3g} MiB"


def _timed(
    watch: Stopwatch, staging: BlockStaging, num_moved: int, num_blocks: int, num_bytes: int
) -> list[list[Cell]]:
    """A row for each direction."""
    ids = np.random.default_rng(0).permutation(num_blocks)[:num_moved].tolist()

    def upload() -> None:
        staging.upload(range(num_moved), ids)
        if watch.is_gpu:
            torch.cuda.synchronize()

    def download() -> None:
        staging.download(ids, range(num_moved))
        while staging.poll() < staging.num_begun:
            pass

    rows: list[list[Cell]] = []
    for name, call in {"to the GPU": upload, "from the GPU": download}.items():
        watch.wall_seconds(call, 1)
        seconds = median(watch.wall_seconds(partial(call), _NUM_RUNS))
        rows.append([name, seconds * 1e3, num_bytes / seconds / 1e9])
    return rows

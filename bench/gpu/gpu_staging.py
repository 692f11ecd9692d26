"""Blocks between a GPU's cache and the staging ring in host memory that the front shares."""

from functools import partial
from statistics import median

import numpy as np
import torch

from baton.model.gpu.block_staging import BlockStaging
from baton.model.tensors.kv_pool import KVPool
from baton.model.tensors.side_stream import side_stream
from baton.wire.kv_spec import KVSpec
from bench.gpu.gpu_machine import Stopwatch
from bench.gpu.gpu_report import Table

_NUM_RUNS = 5


@torch.inference_mode()
def measure_staging(watch: Stopwatch, num_layers: int, num_moved: int) -> Table:
    """Time the upload and the download of a prompt's blocks, scattered in a pool."""
    spec = KVSpec.of_layers(16, [(8, 128, 128, "bfloat16")] * num_layers)
    num_blocks = 4 * num_moved
    num_bytes = num_blocks * spec.row_bytes
    pool = KVPool(spec, torch.zeros(num_bytes, dtype=torch.uint8, device=watch.device))
    ring = memoryview(bytearray(num_moved * spec.row_bytes))
    staging = BlockStaging(pool, ring, side_stream(watch.device))
    ids = np.random.default_rng(0).permutation(num_blocks)[:num_moved].tolist()

    def upload() -> None:
        staging.upload(range(num_moved), ids)
        if watch.is_gpu:
            torch.cuda.synchronize()

    def download() -> None:
        staging.download(ids, range(num_moved))
        while staging.poll() < staging.num_begun:
            pass

    moved = num_moved * spec.row_bytes
    title = f"Staging of {num_moved} blocks of {spec.row_bytes / 2**20:.3g} MiB"
    table = Table("staging", title, ["direction", "ms", "GB/s"])
    for name, call in {"to the GPU": upload, "from the GPU": download}.items():
        watch.wall_seconds(call, 1)
        seconds = median(watch.wall_seconds(partial(call), _NUM_RUNS))
        table.rows.append([name, seconds * 1e3, moved / seconds / 1e9])
    return table

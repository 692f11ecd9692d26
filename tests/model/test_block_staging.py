"""Blocks between a device's cache and the shared pool, in parts when they are many."""

import torch

from baton.engine.model import block_staging
from baton.engine.model.block_staging import BlockStaging
from baton.engine.model.kv_pool import KVPool
from baton.wire.kv_spec import KVSpec

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SPEC = KVSpec.of_layers(16, [(2, 8, 8, "float32")])
NUM_BLOCKS = 9


def test_chosen_blocks_are_moved_and_no_others(monkeypatch):
    monkeypatch.setattr(block_staging, "BUFFER_BYTES", 2 * SPEC.row_bytes)
    rows = torch.arange(NUM_BLOCKS, dtype=torch.uint8).repeat_interleave(SPEC.row_bytes)
    cache = KVPool(SPEC, rows.to(DEVICE))
    shared = bytearray(b"\xff" * len(rows))
    staging = BlockStaging(cache, memoryview(shared))

    staging.download([7, 2, 3, 8, 5])
    left = [shared[block * SPEC.row_bytes] for block in range(NUM_BLOCKS)]
    assert left == [255, 255, 2, 3, 255, 5, 255, 7, 8]
    staging.upload([0, 3, 1])
    assert cache.rows[:, 0].tolist() == [255, 255, 2, 3, 4, 5, 6, 7, 8]
    assert cache.rows[:, -1].tolist() == [255, 255, 2, 3, 4, 5, 6, 7, 8]

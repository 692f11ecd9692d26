"""A device's pages: those that arrived are placed, and summed as their definition says."""

import numpy as np
import pytest
import torch

from baton.engine.protocol.page_checksum import page_checksums
from baton.model.gpu.device_pages import DevicePages
from baton.model.tensors.kv_pool import KVPool
from baton.wire.kv_spec import KVSpec

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SPEC = KVSpec.of_layers(16, [(2, 8, 8, "float32"), (1, 8, 4, "bfloat16")])
NUM_BLOCKS = 5


@pytest.fixture
def pool():
    rng = np.random.default_rng(3)
    rows = rng.integers(0, 256, NUM_BLOCKS * SPEC.row_bytes, np.uint8)
    return KVPool(SPEC, torch.from_numpy(rows).to(DEVICE))


def page(pool, layer, block_id):
    start, end = SPEC.page_range(0, layer)
    return pool.rows[block_id, start:end].cpu().numpy()


def test_checksums_are_those_of_the_definition_and_one_bit_changes_them(pool):
    pages = DevicePages(pool, SPEC.row_bytes)
    wanted = [
        [page_checksums(page(pool, layer, block)[None].view(np.uint64))[0] for block in blocks]
        for layer, blocks in [(0, [4, 1]), (1, [0])]
    ]
    assert pages.checksums([(0, [4, 1]), (1, [0]), (1, [])]) == [*wanted, []]
    pool.rows[1, 77] ^= 1
    changed = pages.checksums([(0, [4, 1])])[0]
    assert changed[0] == wanted[0][0]
    assert changed[1] != wanted[0][1]


def test_what_lies_in_the_ring_is_placed_in_its_blocks_and_nowhere_else(pool):
    pages = DevicePages(pool, 2 * SPEC.row_bytes)
    before = pool.rows.clone()
    start, end = SPEC.page_range(0, 1)
    pages._ring.copy_(torch.arange(len(pages._ring)) % 251)
    pages.place(64, 1, [3, 0])
    size = end - start
    before[3, start:end] = pages._ring[64 : 64 + size]
    before[0, start:end] = pages._ring[64 + size : 64 + 2 * size]
    assert torch.equal(pool.rows, before)


def test_pages_that_are_no_whole_words_are_refused():
    spec = KVSpec.of_layers(1, [(1, 1, 1, "bfloat16")])
    pool = KVPool(spec, torch.zeros(4 * spec.row_bytes, dtype=torch.uint8))
    with pytest.raises(ValueError, match="words"):
        DevicePages(pool, 1024)

"""Blocks between a device's cache and the staging ring, beside the steps that compute."""

import pytest
import torch

from baton.model.gpu import block_staging
from baton.model.gpu.block_staging import BlockStaging
from baton.model.tensors.kv_pool import KVPool
from baton.model.tensors.side_stream import side_stream
from baton.wire.kv_spec import KVSpec
from tests.model.gpu.late_stream import LateStream

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SPEC = KVSpec.of_layers(16, [(2, 8, 8, "float32")])
NUM_BLOCKS = 9
NUM_ROWS = 7


@pytest.fixture
def cache():
    rows = torch.arange(NUM_BLOCKS, dtype=torch.uint8).repeat_interleave(SPEC.row_bytes)
    return KVPool(SPEC, rows.to(DEVICE))


@pytest.fixture
def ring():
    return bytearray(b"\xff" * (NUM_ROWS * SPEC.row_bytes))


@pytest.fixture
def two_small_slots(monkeypatch):
    monkeypatch.setattr(block_staging, "SLOT_BYTES", 2 * SPEC.row_bytes)
    monkeypatch.setattr(block_staging, "NUM_SLOTS", 2)


def first_bytes(ring):
    return [ring[row * SPEC.row_bytes] for row in range(NUM_ROWS)]


def test_chosen_blocks_are_moved_and_no_others(cache, ring, two_small_slots):
    staging = BlockStaging.of_pool(cache, memoryview(ring), side_stream(DEVICE))
    staging.download([7, 2, 3, 8, 5], [6, 0, 4, 1, 2])
    while staging.poll() < staging.num_begun:
        pass
    assert first_bytes(ring) == [2, 8, 5, 255, 3, 255, 7]
    staging.upload([3, 6, 1], [0, 3, 1])
    assert cache.rows[:, 0].tolist() == [255, 8, 2, 7, 4, 5, 6, 7, 8]
    assert cache.rows[:, -1].tolist() == [255, 8, 2, 7, 4, 5, 6, 7, 8]


def test_a_block_has_left_when_its_copy_has_ended_and_not_before(cache, ring):
    stream = LateStream()
    staging = BlockStaging.of_pool(cache, memoryview(ring), stream)
    staging.download([4], [4])
    staging.download([6], [5])
    assert (staging.num_begun, staging.poll()) == (2, 0)
    assert first_bytes(ring) == [255] * NUM_ROWS
    stream.run_one()
    assert staging.poll() == 1
    assert first_bytes(ring) == [255, 255, 255, 255, 4, 255, 255]
    stream.run_one()
    assert staging.poll() == 2
    assert stream.num_waits == 0


def test_a_block_that_is_written_again_leaves_as_it_was(cache, ring):
    stream = LateStream()
    staging = BlockStaging.of_pool(cache, memoryview(ring), stream)
    staging.download([4], [4])
    cache.rows[4] = 99
    stream.run_one()
    staging.poll()
    assert first_bytes(ring)[4] == 4


def test_what_was_uploaded_is_there_for_the_step_and_its_ring_block_may_change(cache, ring):
    staging = BlockStaging.of_pool(cache, memoryview(ring), LateStream())
    staging.upload([5], [2])
    ring[:] = bytes(len(ring))
    assert cache.rows[:, 0].tolist() == [0, 1, 255, 3, 4, 5, 6, 7, 8]


def test_a_full_ring_waits_for_its_oldest_slot_and_loses_nothing(cache, ring, two_small_slots):
    stream = LateStream()
    staging = BlockStaging.of_pool(cache, memoryview(ring), stream)
    staging.download([0, 1, 2, 3, 4, 5, 8], range(NUM_ROWS))
    cache.rows.zero_()
    assert stream.num_waits == 2
    while stream.copies:
        stream.run_one()
    assert staging.poll() == staging.num_begun == 4
    assert first_bytes(ring) == [0, 1, 2, 3, 4, 5, 8]

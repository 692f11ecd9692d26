"""The pool is what was asked for, or what a share of free memory leaves; or one line says why."""

import dataclasses

import pytest

from baton.model.load.load import LoadOptions, load_model
from baton.model.load.load_error import LoadError
from baton.model.load.memory_need import MemoryNeed
from baton.model.load.pool_size import FALLBACK_BYTES, PoolOptions, choose_pool, fit_length


@pytest.fixture
def loaded(model_folder):
    folder = model_folder("llama", max_position_embeddings=4096)
    return load_model(str(folder), LoadOptions(dtype="float32"))


def with_memory(loaded, free_bytes):
    memory = MemoryNeed(weight_bytes=1000, activation_bytes=500, free_bytes=free_bytes)
    return dataclasses.replace(loaded, memory=memory)


def test_a_pool_of_a_given_size_is_that_many_whole_blocks(loaded):
    row_bytes = loaded.kv_spec.row_bytes
    assert choose_pool(loaded, PoolOptions(kv_bytes=row_bytes * 3 + 5)) == row_bytes * 3


def test_the_share_of_free_memory_is_for_weights_activations_and_pool_together(loaded):
    row_bytes = loaded.kv_spec.row_bytes
    free = 4 * (row_bytes * 50 + 1500)
    options = PoolOptions(memory_share=0.25)
    assert choose_pool(with_memory(loaded, free), options) == row_bytes * 50


def test_a_pool_is_never_larger_than_full_batches_can_fill(loaded):
    most = loaded.kv_spec.row_bytes * 2 * 4096 // 16
    assert choose_pool(with_memory(loaded, 2**50), PoolOptions(max_num_seqs=2)) == most


def test_a_pool_has_a_fixed_size_where_free_memory_is_unknown(loaded):
    pool = choose_pool(with_memory(loaded, None), PoolOptions(max_num_seqs=1000))
    assert FALLBACK_BYTES - loaded.kv_spec.row_bytes < pool <= FALLBACK_BYTES


def test_too_little_memory_for_any_pool_is_told_with_the_numbers(loaded):
    with pytest.raises(LoadError, match=r"MiB for weights.*say --kv-memory"):
        choose_pool(with_memory(loaded, 20_000), PoolOptions())


def test_a_length_that_nobody_asked_for_is_lowered_to_what_the_pool_holds(loaded):
    kv_bytes = loaded.kv_spec.row_bytes * 20
    assert fit_length(loaded, kv_bytes, is_length_wanted=False).max_model_len == 320
    with pytest.raises(LoadError, match=f"raise --kv-memory to {loaded.kv_spec.row_bytes * 256}"):
        fit_length(loaded, kv_bytes, is_length_wanted=True)


def test_what_a_model_takes_is_known_before_it_is_read(loaded):
    num_weights = sum(parameter.numel() for parameter in loaded.model.parameters())
    assert loaded.memory.weight_bytes == num_weights * 4
    assert loaded.memory.activation_bytes > 64 * 2**20

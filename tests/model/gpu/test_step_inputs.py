"""A batch in the one buffer that goes to the device."""

import numpy as np
import pytest
import torch

from baton.engine.protocol.batch import StepBatch
from baton.model.gpu.step_inputs import Padding, StepInputs, StepLimits

BLOCK = 16
LIMITS = StepLimits(32, max_seqs=5, max_blocks_per_seq=4, more_segments=3, segment_unit=8)


@pytest.fixture
def inputs():
    return StepInputs(LIMITS, BLOCK, torch.device("cpu"))


def values(inputs, name, count):
    return inputs[name][:count].tolist()


# A decode token at position 33 and a chunk of three from position 15 on.
MIXED = StepBatch(
    step=1,
    token_ids=np.array([7, 8, 9, 10]),
    positions=np.array([33, 15, 16, 17]),
    query_starts=np.array([0, 1, 4], np.int32),
    context_lens=np.array([34, 18], np.int32),
    block_tables=np.array([[5, 2, 9], [4, 3, -1]], np.int32),
    seq_ids=[0, 1],
    sample_rows=[],
)


def test_tokens_have_slots_and_tables_have_no_padding(inputs):
    inputs.fill(MIXED, np.array([3, 0]))
    assert values(inputs, "token_ids", 4) == [7, 8, 9, 10]
    assert values(inputs, "positions", 4) == [33, 15, 16, 17]
    assert values(inputs, "slots", 4) == [9 * 16 + 1, 4 * 16 + 15, 3 * 16, 3 * 16 + 1]
    assert values(inputs, "logit_rows", 2) == [3, 0]
    assert values(inputs, "table_starts", 3) == [0, 3, 5]
    assert values(inputs, "tables", 5) == [5, 2, 9, 4, 3]
    assert (inputs.num_seqs, inputs.num_tokens) == (2, 4)
    assert (inputs.min_queries, inputs.max_queries) == (1, 3)


def test_padding_is_one_token_each_that_stores_and_sees_nothing(inputs):
    inputs.fill(MIXED, np.array([3, 0]), Padding(2, 2))
    assert values(inputs, "query_starts", 5) == [0, 1, 4, 5, 6]
    assert values(inputs, "slots", 6)[4:] == [-1, -1]
    assert values(inputs, "context_lens", 4) == [34, 18, 0, 0]
    assert values(inputs, "table_starts", 5) == [0, 3, 5, 5, 5]
    assert (inputs.num_seqs, inputs.num_tokens) == (4, 6)


def test_sequences_beyond_the_padding_tokens_have_none(inputs):
    inputs.fill(MIXED, np.array([3]), Padding(2, 3))
    assert values(inputs, "query_starts", 6) == [0, 1, 4, 5, 6, 6]
    assert values(inputs, "logit_rows", 6) == [3, 0, 0, 0, 0, 0]
    assert (inputs.num_seqs, inputs.num_tokens) == (5, 6)


def test_long_contexts_are_cut_into_equal_segments_and_none_is_without_one(inputs):
    inputs.fill(MIXED, np.array([3]), Padding(1, 1))
    # 52 tokens in three parts, rounded up to the unit: two sequences have one or two, padding one.
    assert values(inputs, "segment_keys", 1) == [24]
    assert values(inputs, "segment_starts", 4) == [0, 2, 3, 4]
    assert inputs.num_segments == 6
    assert values(inputs, "segment_seqs", 6) == [0, 0, 1, 2, -1, -1]


def test_a_later_step_leaves_nothing_of_an_earlier_one(inputs):
    inputs.fill(MIXED, np.array([3, 0]), Padding(3, 3))
    inputs.fill_padding(Padding(2, 2))
    assert values(inputs, "query_starts", 3) == [0, 1, 2]
    assert values(inputs, "slots", 2) == [-1, -1]
    assert values(inputs, "context_lens", 2) == [0, 0]
    assert values(inputs, "table_starts", 3) == [0, 0, 0]
    assert (inputs.min_queries, inputs.max_queries) == (1, 1)


def test_views_stay_where_they_are(inputs):
    before = {name: inputs[name].data_ptr() for name in ("slots", "tables", "token_ids")}
    inputs.fill(MIXED, np.array([0]))
    assert {name: inputs[name].data_ptr() for name in before} == before
    assert all(address % 16 == 0 for address in before.values())


def test_the_largest_step_fits(inputs):
    tokens = LIMITS.max_tokens
    batch = StepBatch(
        step=1,
        token_ids=np.arange(tokens),
        positions=np.tile(np.arange(tokens), 1),
        query_starts=np.array([0, 1, 2, 3, 4, tokens], np.int32),
        context_lens=np.full(5, 4 * BLOCK, np.int32),
        block_tables=np.arange(20, dtype=np.int32).reshape(5, 4),
        seq_ids=list(range(5)),
        sample_rows=[],
    )
    inputs.fill(batch, np.arange(tokens + LIMITS.max_seqs))
    assert values(inputs, "tables", 20) == list(range(20))
    assert values(inputs, "logit_rows", tokens + 5) == list(range(tokens + 5))

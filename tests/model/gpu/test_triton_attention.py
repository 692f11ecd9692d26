"""The Triton kernels against attention in float64, in Triton's interpreter where no GPU is."""

from typing import NamedTuple

import numpy as np
import pytest
import torch

from tests import needs

pytest.importorskip("triton", reason=needs.TRITON)

from baton.engine.protocol.batch import StepBatch
from baton.model.gpu.step_inputs import Padding, StepInputs, StepLimits
from baton.model.gpu.triton.attention_backend import TileShape, TritonAttention, Tuning
from baton.model.tensors.attention import AttentionForm
from baton.model.tensors.kv_pool import KVPool
from baton.wire.kv_spec import KVSpec

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BLOCK, NUM_BLOCKS, NUM_KV_HEADS, K_DIM, V_DIM = 16, 32, 2, 24, 16
LAYER = 1  # of two, so that pages lie inside of rows
SMALL = Tuning(
    short=TileShape(num_rows=16, num_keys=16, num_warps=4, num_stages=2),
    long=TileShape(num_rows=16, num_keys=16, num_warps=4, num_stages=2),
)
LIMITS = StepLimits(64, 8, 4, more_segments=6, segment_unit=16)
# (tokens in the cache before, new tokens): decode, a first chunk, a later one, a short draft.
MIXED = ((37, 1), (0, 20), (18, 9), (60, 2))
PLAIN = AttentionForm(0.25)
FORMS = {
    "plain": PLAIN,
    "window": AttentionForm(0.25, sliding_window=24),
    "softcap": AttentionForm(0.25, softcap=2.0),
    "sinks": AttentionForm(0.25, sinks=torch.linspace(-1.0, 2.0, 6)),
    "all": AttentionForm(0.25, 24, 2.0, torch.linspace(-1.0, 2.0, 6)),
}


class Sequence(NamedTuple):
    """Random tensors of one sequence: all its keys and values, the queries of its new tokens."""

    query: torch.Tensor  # [num_heads, num_new, K_DIM]
    key: torch.Tensor  # [NUM_KV_HEADS, num_tokens, K_DIM]
    value: torch.Tensor


def make_sequences(counts=MIXED, group=3, dtype=torch.float32) -> list[Sequence]:
    torch.manual_seed(3)
    return [
        Sequence(
            torch.randn(NUM_KV_HEADS * group, num_new, K_DIM).to(dtype),
            torch.randn(NUM_KV_HEADS, num_old + num_new, K_DIM).to(dtype),
            torch.randn(NUM_KV_HEADS, num_old + num_new, V_DIM).to(dtype),
        )
        for num_old, num_new in counts
    ]


class Setup:
    """A backend over a pool of two layers with scattered blocks."""

    def __init__(self, dtype=torch.float32, tuning=SMALL) -> None:
        name = str(dtype).removeprefix("torch.")
        spec = KVSpec.of_layers(BLOCK, [(NUM_KV_HEADS, K_DIM, V_DIM, name)] * 2)
        self.bytes = torch.zeros(NUM_BLOCKS * spec.row_bytes, dtype=torch.uint8, device=DEVICE)
        self.pool = KVPool(spec, self.bytes)
        self.tables = np.random.default_rng(0).permutation(NUM_BLOCKS).reshape(8, 4)
        self.inputs = StepInputs(LIMITS, BLOCK, DEVICE)
        self.backend = TritonAttention(self.inputs, tuning)
        self.backend.bind(self.pool)

    def put_old(self, sequences: list[Sequence]) -> None:
        """Write what earlier steps have left in the cache."""
        for table, seq in zip(self.tables, sequences, strict=False):
            for position in range(seq.key.shape[1] - seq.query.shape[1]):
                block, offset = table[position // BLOCK], position % BLOCK
                self.pool.keys[LAYER][block, :, offset] = seq.key[:, position]
                self.pool.values[LAYER][block, :, offset] = seq.value[:, position]

    def attend(self, sequences: list[Sequence], form=PLAIN, rows=None, num_padded=0):
        """One step over the sequences that use these rows of the tables."""
        rows = list(range(len(sequences))) if rows is None else rows
        self.inputs.fill(
            self._batch(sequences, rows), np.empty(0, np.int64), Padding(num_padded, num_padded)
        )

        def flat(parts: list[torch.Tensor]) -> torch.Tensor:
            return torch.nn.functional.pad(torch.cat(parts, 1), (0, 0, 0, num_padded)).to(DEVICE)

        news = [seq.query.shape[1] for seq in sequences]
        query = flat([seq.query for seq in sequences])
        key = flat([seq.key[:, -n:] for seq, n in zip(sequences, news, strict=True)])
        value = flat([seq.value[:, -n:] for seq, n in zip(sequences, news, strict=True)])
        sinks = None if form.sinks is None else form.sinks.to(DEVICE)
        return self.backend.attend(LAYER, query, key, value, form._replace(sinks=sinks)).cpu()

    def _batch(self, sequences: list[Sequence], rows: list[int]) -> StepBatch:
        totals = [seq.key.shape[1] for seq in sequences]
        news = [seq.query.shape[1] for seq in sequences]
        parts = zip(totals, news, strict=True)
        return StepBatch(
            step=1,
            token_ids=np.zeros(sum(news), np.int64),
            positions=np.concatenate([np.arange(total - new, total) for total, new in parts]),
            query_starts=np.cumsum([0, *news], dtype=np.int32),
            context_lens=np.array(totals, np.int32),
            block_tables=self.tables[rows].astype(np.int32),
            seq_ids=rows,
            sample_rows=[],
        )


def expected(seq: Sequence, form: AttentionForm) -> torch.Tensor:
    """Attention by its definition, `[num_new, num_heads, V_DIM]` in float64."""
    group = len(seq.query) // NUM_KV_HEADS
    keys, values = (part.double().repeat_interleave(group, 0) for part in (seq.key, seq.value))
    scores = seq.query.double() @ keys.transpose(1, 2) * form.scaling
    if form.softcap is not None:
        scores = form.softcap * torch.tanh(scores / form.softcap)
    num_new, num_keys = scores.shape[1:]
    ahead = torch.arange(num_keys) - torch.arange(num_keys - num_new, num_keys)[:, None]
    hidden = ahead > 0
    if form.sliding_window is not None:
        hidden |= ahead <= -form.sliding_window
    scores = scores.masked_fill(hidden, -torch.inf)
    if form.sinks is not None:
        sinks = form.sinks.double().view(-1, 1, 1).expand(-1, num_new, 1)
        scores = torch.cat([scores, sinks], -1)
    return (scores.softmax(-1)[..., :num_keys] @ values).transpose(0, 1)


def expected_all(sequences: list[Sequence], form: AttentionForm) -> torch.Tensor:
    return torch.cat([expected(seq, form) for seq in sequences])


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_mixed_batch_equals_attention_by_its_definition(form):
    sequences = make_sequences()
    setup = Setup()
    setup.put_old(sequences)
    actual = setup.attend(sequences, form)
    torch.testing.assert_close(actual.double(), expected_all(sequences, form), atol=2e-6, rtol=0)


@pytest.mark.parametrize("group", [1, 4, 20])
def test_any_number_of_heads_may_share_a_kv_head(group):
    counts = MIXED[:2]
    sequences = make_sequences(counts, group)
    setup = Setup()
    setup.put_old(sequences)
    actual = setup.attend(sequences)
    torch.testing.assert_close(actual.double(), expected_all(sequences, PLAIN), atol=2e-6, rtol=0)


# The interpreter has no arithmetic for bfloat16.
@pytest.mark.parametrize(
    "dtype",
    [
        torch.float16,
        pytest.param(
            torch.bfloat16, marks=pytest.mark.skipif(DEVICE.type == "cpu", reason=needs.GPU)
        ),
    ],
)
def test_half_precision_differs_by_rounding_alone(dtype):
    sequences = make_sequences(dtype=dtype)
    setup = Setup(dtype)
    setup.put_old(sequences)
    actual = setup.attend(sequences).double()
    wanted = expected_all(sequences, PLAIN)
    assert (actual - wanted).norm() / wanted.norm() < (2e-3 if dtype == torch.float16 else 1e-2)


def test_batch_mates_change_the_order_of_sums_alone():
    sequences = make_sequences()
    setup = Setup()
    setup.put_old(sequences)
    together = setup.attend(sequences, FORMS["all"])
    ends = np.cumsum([0] + [seq.query.shape[1] for seq in sequences])
    for row, seq in enumerate(sequences):
        alone = setup.attend([seq], FORMS["all"], rows=[row])
        torch.testing.assert_close(alone, together[ends[row] : ends[row + 1]], atol=1e-6, rtol=0)


def test_padding_changes_no_result_and_no_byte_of_the_cache():
    sequences = make_sequences(((37, 1), (60, 1)))
    setup = Setup()
    setup.put_old(sequences)
    plain = setup.attend(sequences, FORMS["sinks"])
    before = setup.bytes.clone()
    padded = setup.attend(sequences, FORMS["sinks"], num_padded=2)
    assert torch.equal(padded[:2], plain)
    assert torch.equal(padded[2:], torch.zeros_like(padded[2:]))
    assert torch.equal(setup.bytes, before)


def test_new_tokens_are_stored_in_their_slots_and_nowhere_else():
    sequences = make_sequences(((14, 5),))
    setup = Setup()
    setup.attend(sequences)
    table, seq = setup.tables[0], sequences[0]
    kept = setup.pool.keys[LAYER].clone()
    for position in range(14, 19):
        row = kept[table[position // BLOCK], :, position % BLOCK]
        assert torch.equal(row.cpu(), seq.key[:, position])
        row.zero_()
    assert not kept.any()
    assert not setup.pool.keys[0].any()
    assert not setup.pool.values[0].any()

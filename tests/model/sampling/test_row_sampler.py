"""Edits of logits and logprobs, each against a plain calculation."""

import numpy as np
import pytest
import torch

from baton.engine.protocol.batch import SampleRow, TokenHistory
from baton.engine.protocol.messages import SamplingParams
from baton.model.sampling.logit_edits import LogitEditor
from baton.model.sampling.row_sampler import RowSampler, largest
from baton.model.sampling.token_counts import MIN_KEPT, CountsCache

VOCAB = 100
EOS = (99, 98)


def _logits(num_rows: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, VOCAB, generator=generator) * 3


def _row(index: int = 0, history: TokenHistory | None = None, **fields: object) -> SampleRow:
    row_fields = {name: fields.pop(name) for name in ("mask_row", "forced_token") if name in fields}
    params = SamplingParams(max_tokens=50, **fields)
    is_forced = "forced_token" in row_fields
    num_logprobs = params.num_prompt_logprobs if is_forced else params.num_logprobs
    return SampleRow(0, params, 0, index, history, num_logprobs, **row_fields)


def _history(tokens, num_prompt_tokens: int, draft=(), seq_id: int = 1) -> TokenHistory:
    return TokenHistory(seq_id, np.array(tokens, np.uint32), num_prompt_tokens, tuple(draft))


def _edited(logits: torch.Tensor, rows: list[SampleRow], masks=None) -> torch.Tensor:
    edited = logits.clone()
    LogitEditor(EOS).edit(edited, rows, masks)
    return edited


def _plainly_penalised(logits: torch.Tensor, row: SampleRow) -> torch.Tensor:
    """vLLM's formulas, one token at a time."""
    params, history = row.params, row.history
    tokens = [*history.tokens.tolist(), *history.draft]
    output = tokens[history.num_prompt_tokens :]
    plain = logits.double().clone()
    for token in set(tokens):
        factor = params.repetition_penalty
        plain[token] = plain[token] / factor if plain[token] > 0 else plain[token] * factor
        plain[token] -= params.frequency_penalty * output.count(token)
        plain[token] -= params.presence_penalty * (token in output)
    return plain.float()


@pytest.mark.parametrize(
    "penalties",
    [
        {"presence_penalty": 1.5},
        {"frequency_penalty": -0.7},
        {"repetition_penalty": 1.3},
        {"presence_penalty": -1.0, "frequency_penalty": 0.4, "repetition_penalty": 0.8},
    ],
)
def test_penalties_equal_the_plain_formulas_while_a_sequence_grows(penalties):
    rng = np.random.default_rng(3)
    editor = LogitEditor(EOS)
    tokens = rng.integers(0, 60, 200)
    for step, length in enumerate([40, 41, 45, 46, 46, 90, 200]):
        # Two sequences in one batch; one of them guesses ahead at times.
        draft = rng.integers(0, 60, step % 3)
        rows = [
            _row(history=_history(tokens[:length], 30, draft), **penalties),
            _row(frequency_penalty=0.0),
            _row(history=_history(tokens[: length // 2], 7, seq_id=2), **penalties),
        ]
        logits = _logits(3, seed=step)
        edited = logits.clone()
        editor.edit(edited, rows, None)
        for index in (0, 2):
            expected = _plainly_penalised(logits[index], rows[index])
            torch.testing.assert_close(edited[index], expected, atol=1e-5, rtol=1e-5)
        assert torch.equal(edited[1], logits[1])


def test_counts_of_sequences_that_are_gone_are_dropped_and_can_be_made_again():
    cache = CountsCache()
    first = _history([1, 2, 2], 1)
    before = [column.tolist() for column in cache.counts_of([first])[0]]
    for seq_id in range(2, MIN_KEPT + 10):
        cache.counts_of([_history([5, 6], 1, seq_id=seq_id)])
    assert len(cache) == MIN_KEPT
    assert [column.tolist() for column in cache.counts_of([first])[0]] == before == [[1, 2], [0, 2]]


def test_bias_is_added_to_its_tokens_only():
    logits = _logits(2)
    edited = _edited(logits, [_row(logit_bias=((7, 5.0), (3, -100.0))), _row()])
    expected = logits.clone()
    expected[0, 7] += 5.0
    expected[0, 3] -= 100.0
    assert torch.equal(edited, expected)


def test_a_mask_forbids_exactly_the_tokens_whose_bits_are_clear():
    allowed = np.random.default_rng(0).random((2, 128)) < 0.5
    masks = np.packbits(allowed, axis=1, bitorder="little").view(np.int32)
    logits = _logits(3)
    edited = _edited(logits, [_row(mask_row=1), _row(), _row(mask_row=0)], masks)
    assert torch.equal(edited[1], logits[1])
    for row, mask in ((0, 1), (2, 0)):
        kept = torch.from_numpy(allowed[mask, :VOCAB])
        assert torch.equal(edited[row], logits[row].masked_fill(~kept, -torch.inf))


def test_ends_are_forbidden_before_min_tokens():
    logits = _logits(3)
    rows = [
        _row(4, min_tokens=5, stop_token_ids=(3,)),
        _row(5, min_tokens=5, stop_token_ids=(3,)),
        _row(0, min_tokens=1, stop_token_ids=(3,), ignore_eos=True),
    ]
    edited = _edited(logits, rows)
    assert torch.nonzero(edited[0].isneginf()).flatten().tolist() == [3, 98, 99]
    assert torch.equal(edited[1], logits[1])
    assert torch.nonzero(edited[2].isneginf()).flatten().tolist() == [3]


def test_an_end_that_is_all_a_mask_allows_is_not_forbidden():
    allowed = np.zeros((1, 128), bool)
    allowed[0, list(EOS)] = True
    masks = np.packbits(allowed, axis=1, bitorder="little").view(np.int32)
    edited = _edited(_logits(1), [_row(0, min_tokens=5, mask_row=0)], masks)
    assert torch.nonzero(edited[0].isfinite()).flatten().tolist() == [98, 99]


def test_logprobs_are_of_the_raw_logits_whatever_the_edits():
    logits = _logits(4, seed=5)
    expected = logits.log_softmax(-1)
    rows = [
        _row(num_logprobs=3, logit_bias=((11, 100.0),)),
        _row(),
        _row(num_logprobs=0, temperature=2.0, seed=1),
        _row(forced_token=42, num_prompt_logprobs=2, num_logprobs=0),
    ]
    result = RowSampler(EOS).result(logits.clone(), rows, None)
    assert result.tokens[0] == 11
    assert result.tokens[3] == 42
    assert result.logprobs[1] is None
    for index, num in ((0, 3), (2, 0), (3, 2)):
        told = result.logprobs[index]
        top = expected[index].topk(num)
        assert told.logprob == pytest.approx(float(expected[index, result.tokens[index]]), abs=1e-5)
        assert told.top_ids == top.indices.tolist()
        assert told.top_logprobs == pytest.approx(top.values.tolist(), abs=1e-5)
    # Of a token that was forced, and of no other.
    rank = sum(value >= logits[3, 42] for value in logits[3])
    assert [told and told.rank for told in result.logprobs] == [0, None, 0, rank]


def test_more_top_logprobs_than_tokens_are_all_tokens():
    result = RowSampler(EOS).result(_logits(1), [_row(num_logprobs=VOCAB + 5)], None)
    assert sorted(result.logprobs[0].top_ids) == list(range(VOCAB))


def test_nobody_asked_means_no_logprobs_and_untouched_logits():
    logits = _logits(2)
    before = logits.clone()
    assert RowSampler(EOS).result(logits, [_row(), _row()], None).logprobs == []
    assert torch.equal(logits, before)


@pytest.mark.parametrize("num", [1, 4, 20, VOCAB])
def test_largest_orders_equals_by_id(num):
    values = _logits(5).round()  # many equals
    ordered, ids = largest(values, num)
    wanted, wanted_ids = values.sort(stable=True, dim=-1, descending=True)
    assert torch.equal(ordered, wanted[:, :num])
    assert torch.equal(ids, wanted_ids[:, :num])

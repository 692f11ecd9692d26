"""Sampling: reproducible whatever the batch, and distributed like the softmax that it samples."""

import numpy as np
import pytest
import torch

from baton.engine.protocol.batch import SampleRow
from baton.engine.protocol.messages import SamplingParams
from baton.model.sampling import sampler
from baton.model.sampling.noise import row_keys, uniforms
from baton.model.sampling.sampler import CANDIDATES, sample

VOCAB = 600
NUM_DRAWS = 8_000
COMMITTED = [0.768075, 0.0096006, 0.3494885, 0.8477443, 0.7440857, 0.5180346]
# Chi-square values that a correct sampler exceeds once in a thousand seeds (normal approximation).
SETTINGS = {
    "temperature": {"temperature": 0.7},
    "hot": {"temperature": 1.6},
    "top-k": {"temperature": 1.0, "top_k": 12},
    "wide top-k": {"temperature": 1.0, "top_k": CANDIDATES + 40},
    "top-p": {"temperature": 1.0, "top_p": 0.6},
    "wide top-p": {"temperature": 2.5, "top_p": 0.97},
    "top-k and top-p": {"temperature": 1.2, "top_k": 30, "top_p": 0.8},
    "min-p": {"temperature": 0.8, "min_p": 0.1},
    "wide min-p": {"temperature": 2.5, "min_p": 0.004},
    "top-p and min-p": {"temperature": 1.5, "top_p": 0.7, "min_p": 0.05},
}


def _logits(num_rows: int, seed: int = 0, scale: float = 2.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, VOCAB, generator=generator) * scale


def _row(token_row: int, index: int = 0, choice: int = 0, **params: float) -> SampleRow:
    return SampleRow(token_row, SamplingParams(max_tokens=1, **params), choice, index)


def _keys(seeds, choices, output_indexes) -> np.ndarray:
    return row_keys(*(np.array(part, np.uint64) for part in (seeds, choices, output_indexes)))


def _exact(logits: torch.Tensor, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0) -> np.ndarray:
    """The distribution that settings mean, by sorting the whole vocabulary."""
    shares = (logits.double() / temperature).softmax(-1)
    ordered, ids = shares.sort(descending=True)
    if top_k:
        ordered[top_k:] = 0
        ordered /= ordered.sum()
    ordered[(ordered.cumsum(-1) - ordered) >= top_p] = 0
    ordered[ordered < min_p * ordered[0]] = 0
    return torch.zeros(VOCAB, dtype=torch.float64).scatter(0, ids, ordered / ordered.sum()).numpy()


@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_are_distributed_like_the_exact_softmax(name):
    settings = SETTINGS[name]
    logits = _logits(1, seed=4)
    rows = [_row(0, index, seed=99, **settings) for index in range(NUM_DRAWS)]
    tokens = np.concatenate(
        [sample(logits.expand(500, -1), rows[at : at + 500]) for at in range(0, NUM_DRAWS, 500)]
    )
    expected = _exact(logits[0], **settings) * NUM_DRAWS
    counts = np.bincount(tokens, minlength=VOCAB)
    assert not counts[expected == 0].any()
    # Rare tokens are counted as one, so that each cell expects enough.
    common = expected >= 8
    observed = np.append(counts[common], counts[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    chi_square = float(((observed - wanted) ** 2 / wanted).sum())
    freedom = len(wanted) - 1
    assert chi_square < freedom + 3.3 * (2 * freedom) ** 0.5 + 5, (chi_square, freedom)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_token_does_not_depend_on_how_many_candidates_were_enough(name, monkeypatch):
    logits = _logits(60, seed=6)
    rows = [_row(index, index, seed=5, **SETTINGS[name]) for index in range(60)]
    expected = sample(logits, rows).tolist()
    monkeypatch.setattr(sampler, "WIDTHS", (5, 40, 130))
    assert sample(logits, rows).tolist() == expected


def test_greedy_takes_the_lowest_id_of_equals():
    logits = torch.zeros(2, VOCAB)
    logits[0, [17, 400]] = 3.0
    logits[1, [599, 5]] = 1.0
    assert sample(logits, [_row(0), _row(1)]).tolist() == [17, 5]


def test_top_k_of_equals_keeps_the_lowest_ids():
    rows = [_row(0, index, temperature=1.0, top_k=3, seed=1) for index in range(200)]
    tokens = sample(torch.zeros(200, VOCAB), rows)
    assert set(tokens.tolist()) == {0, 1, 2}


def test_a_forced_token_is_given_and_leaves_its_batch_mates_alone():
    logits = _logits(3, seed=2)
    rows = [_row(0, 0, temperature=1.0), _row(1), _row(2, 2, temperature=1.0, top_p=0.5)]
    free = sample(logits, rows)
    rows[1].forced_token = 77
    assert sample(logits, rows).tolist() == [free[0], 77, free[2]]


def test_limits_among_few_allowed_tokens_need_no_sorted_vocabulary(monkeypatch):
    allowed = [5, 50, 500]
    logits = torch.full((4, VOCAB), -torch.inf)
    logits[:, allowed] = torch.tensor([1.0, 2.0, 3.0])
    limits = [{"top_k": 400}, {"top_p": 0.99}, {"min_p": 0.01}, {"top_k": 400, "top_p": 0.9}]
    rows = [_row(i, i, temperature=1.0, **limit) for i, limit in enumerate(limits)]
    widths = []
    inner = sampler._limited_among
    monkeypatch.setattr(
        sampler, "_limited_among", lambda *args: widths.append(args[2]) or inner(*args)
    )
    assert set(sample(logits, rows).tolist()) <= set(allowed)
    assert widths == [CANDIDATES]


def test_a_token_does_not_depend_on_batch_mates_or_on_repeating():
    logits = _logits(40, seed=8)
    kinds = [{}, {"temperature": 0.0}, *SETTINGS.values()]
    rows = [_row(i, i, i % 3, seed=i // 2, **kinds[i % len(kinds)]) for i in range(40)]
    together = sample(logits, rows)
    order = np.random.default_rng(0).permutation(40)
    shuffled = sample(logits[order], [rows[i] for i in order])
    alone = [int(sample(logits[i : i + 1], [rows[i]])[0]) for i in range(40)]
    assert together.tolist() == alone
    assert shuffled.tolist() == together[order].tolist()


def test_seed_choice_and_index_each_change_the_token():
    logits = torch.zeros(1, VOCAB)
    base = {"seed": 5, "choice": 0, "index": 0}
    changed = [base, base | {"seed": 6}, base | {"choice": 1}, base | {"index": 1}]
    tokens = [int(sample(logits, [_row(0, temperature=1.0, **one)])[0]) for one in changed]
    assert len(set(tokens)) == 4


def test_noise_of_a_token_does_not_depend_on_the_other_candidates():
    keys = _keys([1, 2], [0, 1], [0, 7])
    everything = uniforms(keys, np.arange(VOCAB, dtype=np.uint32)[None])
    some = np.array([[3, 500], [42, 41]], dtype=np.uint32)
    assert uniforms(keys, some).tolist() == [
        [everything[0, 3], everything[0, 500]],
        [everything[1, 42], everything[1, 41]],
    ]


def test_noise_is_uniform_over_ids_and_over_indexes():
    ids = np.arange(200_000, dtype=np.uint32)[None]
    over_ids = uniforms(_keys([3], [0], [0]), ids)[0]
    keys = _keys([3] * 50_000, [0] * 50_000, range(50_000))
    over_indexes = uniforms(keys, np.array([[7]], dtype=np.uint32))[:, 0]
    for values in (over_ids, over_indexes):
        counts = np.histogram(values, bins=100, range=(0.0, 1.0))[0]
        expected = len(values) / 100
        assert ((counts - expected) ** 2 / expected).sum() < 99 + 3.3 * (2 * 99) ** 0.5 + 5
        assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.02


def test_noise_has_its_committed_values():
    """A change here would change the tokens of every seeded request."""
    keys = _keys([0, 2**63], [0, 3], [0, 1000])
    values = uniforms(keys, np.array([[0, 1, 31_999]], dtype=np.uint32))
    assert values.flatten().tolist() == pytest.approx(COMMITTED, abs=1e-7)


def test_a_tiny_temperature_is_greedy_and_finite():
    logits = _logits(3, scale=30.0)
    rows = [_row(i, temperature=1e-6, top_p=0.9, seed=i) for i in range(3)]
    assert sample(logits, rows).tolist() == logits.argmax(-1).tolist()

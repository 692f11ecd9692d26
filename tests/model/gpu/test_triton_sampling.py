"""Sampling on a device against sampling on the CPU, in Triton's interpreter where no GPU is."""

import numpy as np
import pytest
import torch

from tests import needs

pytest.importorskip("triton", reason=needs.TRITON)

from baton.engine.protocol.batch import SampleRow
from baton.engine.protocol.messages import SamplingParams
from baton.model.gpu.triton import sampling
from baton.model.gpu.triton.sampling import forbid_on_device, sample_on_device
from baton.model.sampling.logit_edits import forbid_tokens
from baton.model.sampling.sampler import sample

HAS_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if HAS_GPU else "cpu")
VOCAB = 600  # two tiles, the last one not full
SETTINGS = {
    "temperature": {"temperature": 0.7},
    "greedy": {"temperature": 0.0},
    "top-k of 1": {"temperature": 1.0, "top_k": 1},
    "top-k": {"temperature": 1.0, "top_k": 12},
    "top-p": {"temperature": 1.0, "top_p": 0.6},
    "wide top-p": {"temperature": 2.5, "top_p": 0.97},
    "top-k and top-p": {"temperature": 1.2, "top_k": 30, "top_p": 0.8},
    "min-p": {"temperature": 0.8, "min_p": 0.1},
    "all": {"temperature": 1.5, "top_k": 40, "top_p": 0.7, "min_p": 0.05},
}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(sampling, "_MAX_TILE", 512)


def _logits(num_rows: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, VOCAB, generator=generator) * 2


def _row(index: int, **params: float) -> SampleRow:
    return SampleRow(index, SamplingParams(max_tokens=1, **params), index % 3, index)


@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_are_the_same_as_on_the_cpu(name):
    logits = _logits(8, seed=4)
    rows = [_row(index, seed=index * 2**60, **SETTINGS[name]) for index in range(8)]
    assert sample_on_device(logits.to(DEVICE), rows).tolist() == sample(logits, rows).tolist()


def test_rows_of_all_kinds_share_a_launch():
    logits = _logits(len(SETTINGS), seed=5)
    rows = [_row(i, seed=i, **settings) for i, settings in enumerate(SETTINGS.values())]
    rows[2].forced_token = 77
    assert sample_on_device(logits.to(DEVICE), rows).tolist() == sample(logits, rows).tolist()


def test_of_equals_limits_keep_the_lowest_ids():
    logits = torch.zeros(9, VOCAB)
    logits[:, 30:] = -5.0
    limits = [{"top_k": 3}, {"top_p": 0.07}, {"top_k": 5, "top_p": 0.5}]
    rows = [_row(i, temperature=1.0, seed=i, **limits[i % 3]) for i in range(9)]
    assert set(sample_on_device(logits.to(DEVICE), rows).tolist()) == {0, 1, 2}


def test_forbidden_tokens_are_never_sampled():
    logits = torch.full((4, VOCAB), -torch.inf)
    logits[:, [5, 50, 599]] = torch.tensor([1.0, 2.0, 3.0])
    limits = [{"top_k": 400}, {"top_p": 0.99}, {"min_p": 0.01}, {"top_k": 400, "top_p": 0.9}]
    rows = [_row(i, temperature=1.0, **limit) for i, limit in enumerate(limits)]
    assert sample_on_device(logits.to(DEVICE), rows).tolist() == sample(logits, rows).tolist()


def test_a_tiny_temperature_is_greedy_and_finite():
    logits = _logits(3) * 15
    rows = [_row(i, temperature=1e-6, top_p=0.9, seed=i) for i in range(3)]
    assert sample_on_device(logits.to(DEVICE), rows).tolist() == logits.argmax(-1).tolist()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter's numpy
def test_logits_without_numbers_give_a_token_that_exists():
    logits = torch.full((2, VOCAB), torch.nan)
    rows = [_row(0, temperature=1.0, top_p=0.9), _row(1)]
    assert sample_on_device(logits.to(DEVICE), rows).tolist() == [0, 0]


@pytest.mark.parametrize("num_words", [19, 18, 20])
def test_masks_forbid_the_same_tokens_as_on_the_cpu(num_words):
    rng = np.random.default_rng(num_words)
    words = rng.integers(-(2**31), 2**31, (2, num_words)).astype(np.int32)
    expected = _logits(4)
    actual = expected.to(DEVICE, copy=True)
    forbid_tokens(expected, [3, 1], words)
    forbid_on_device(actual, [3, 1], words)
    assert torch.equal(actual.cpu(), expected)


@pytest.mark.skipif(HAS_GPU, reason="needs a CPU with Triton's interpreter, which counts")
@pytest.mark.parametrize(
    ("params", "num_passes"), [({}, 2), ({"top_p": 0.9}, 3), ({"temperature": 0.0}, 1)]
)
def test_logits_are_read_twice_at_the_default_temperature(params, num_passes, monkeypatch):
    from triton.runtime.interpreter import InterpreterBuilder

    read = []
    load = InterpreterBuilder.create_masked_load

    def counted(self, pointers, mask, *others):
        if pointers.dtype.element_ty.is_fp32() and mask.data.size > 1:
            read.append(int(mask.data.sum()))
        return load(self, pointers, mask, *others)

    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", counted)
    logits = torch.zeros(1, VOCAB)
    logits[0, 9] = 20.0  # so that the first winner is kept
    sample_on_device(logits, [_row(0, **{"temperature": 1.0} | params)])
    assert sum(read) == num_passes * VOCAB

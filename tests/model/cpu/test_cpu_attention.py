"""The compiled attention kernels against plain softmax in float64, on each instruction set here."""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
import torch

from baton.engine.protocol.batch import StepBatch
from baton.model.cpu.cpu_attention import CpuAttention
from baton.model.tensors.attention import AttentionForm
from baton.model.tensors.kv_pool import KVPool
from baton.model.tensors.torch_attention import TorchAttention
from baton.model.torch_runner import TorchRunner
from baton.wire.kv_spec import KVSpec

pytestmark = pytest.mark.usefixtures("compiled_kernels")
HEADS = 2  # of keys and values
LAYER = 1  # of two
BLOCK = 16
# Query tokens and tokens before them, by sequence.
QUERIES, PASTS = (1, 17, 130, 1, 5, 1), (0, 45, 200, 523, 290, 15)
EVERY = tuple(range(len(QUERIES)))
TOLERANCE = {"float32": 5e-6, "bfloat16": 0.01}  # the latter is half a unit in the last place
FORMS = {
    "plain": {},
    "window": {"sliding_window": 40},
    "wide window": {"sliding_window": 300},
    "softcap": {"softcap": 5.0},
    "sinks": {"sinks": True},
    "all": {"sliding_window": 270, "softcap": 5.0, "sinks": True},
}


class Case(NamedTuple):
    """A batch over scattered blocks. What no sequence may see is NaN."""

    memory: bytearray
    pool: KVPool
    tables: np.ndarray
    query: torch.Tensor  # [num_heads, T, dim], the last dimension dense
    keys: list[torch.Tensor]  # of each sequence, [HEADS, length, dim]
    values: list[torch.Tensor]

    def attend(self, backend, form, sequences=EVERY, first=0, end=None):
        """Query tokens [first, end) of those sequences, `[T, num_heads, v_dim]`."""
        counts = [len(range(QUERIES[s])[first:end]) for s in sequences]
        lengths = [PASTS[s] + first + n for s, n in zip(sequences, counts, strict=True)]
        rows = [np.arange(QUERIES[s])[first:end] for s in sequences]
        flat = np.concatenate([sum(QUERIES[:s]) + r for s, r in zip(sequences, rows, strict=True)])
        new = [PASTS[s] + r for s, r in zip(sequences, rows, strict=True)]
        backend.bind(self.pool)
        backend.begin_step(
            StepBatch(
                step=0,
                token_ids=np.zeros(len(flat), np.int64),
                positions=np.concatenate(new),
                query_starts=np.cumsum([0, *counts], dtype=np.int32),
                context_lens=np.array(lengths, np.int32),
                block_tables=self.tables[list(sequences)],
                seq_ids=[],
                sample_rows=[],
            )
        )
        key = torch.cat([self.keys[s][:, n] for s, n in zip(sequences, new, strict=True)], 1)
        value = torch.cat([self.values[s][:, n] for s, n in zip(sequences, new, strict=True)], 1)
        return backend.attend(LAYER, self.query[:, flat], key, value, form)


@cache
def make_case(dtype: str, group: int, k_dim: int, v_dim: int = 0, block_size: int = BLOCK) -> Case:
    random = torch.Generator().manual_seed(3)
    v_dim = v_dim or k_dim
    spec = KVSpec.of_layers(block_size, [(HEADS, k_dim, v_dim, dtype)] * 2)
    num_blocks = [spec.num_blocks_for(n + past) for n, past in zip(QUERIES, PASTS, strict=True)]
    memory = bytearray(spec.row_bytes * (sum(num_blocks) + 1))
    pool = KVPool(spec, memoryview(memory))
    for pages in pool.keys + pool.values:
        pages.fill_(torch.nan)
    shuffled = np.random.default_rng(5).permutation(sum(num_blocks) + 1).astype(np.int32)
    tables = np.full((len(QUERIES), max(num_blocks) + 1), -1, np.int32)
    keys, values = [], []
    for s, past in enumerate(PASTS):
        tables[s, : num_blocks[s]] = shuffled[sum(num_blocks[:s]) :][: num_blocks[s]]
        shape = (HEADS, past + QUERIES[s])
        keys.append(torch.randn(*shape, k_dim, generator=random).to(pool.keys[0].dtype))
        values.append(torch.randn(*shape, v_dim, generator=random).to(pool.keys[0].dtype))
        for token in range(past):
            block = tables[s, token // block_size]
            pool.keys[LAYER][block, :, token % block_size] = keys[s][:, token]
            pool.values[LAYER][block, :, token % block_size] = values[s][:, token]
    query = torch.randn(sum(QUERIES), HEADS * group, k_dim, generator=random)
    query = query.to(pool.keys[0].dtype).transpose(0, 1)
    return Case(memory, pool, tables, query, keys, values)


@cache
def make_form(name: str, group: int, dim: int) -> AttentionForm:
    changes = dict(FORMS[name])
    if "sinks" in changes:
        changes["sinks"] = torch.randn(HEADS * group, generator=torch.Generator().manual_seed(1))
    return AttentionForm(dim**-0.5, **changes)


@cache
def expected(name: str, dtype: str, group: int, k_dim: int, *rest: int) -> torch.Tensor:
    """Float64 softmax attention of the whole case, `[T, num_heads, v_dim]`."""
    case, form = make_case(dtype, group, k_dim, *rest), make_form(name, group, k_dim)
    queries = case.query.double().split(QUERIES, 1)
    parts = zip(queries, case.keys, case.values, PASTS, strict=True)
    return torch.cat([reference(q, k.double(), v.double(), past, form) for q, k, v, past in parts])


def reference(query, keys, values, past, form):
    group = len(query) // HEADS
    scores = query @ keys.repeat_interleave(group, 0).mT * form.scaling
    if form.softcap:
        scores = form.softcap * torch.tanh(scores / form.softcap)
    ahead = torch.arange(keys.shape[1]) - torch.arange(past, past + query.shape[1])[:, None]
    hidden = ahead > 0
    if form.sliding_window:
        hidden |= ahead <= -form.sliding_window
    scores = scores.masked_fill(hidden, -torch.inf)
    if form.sinks is not None:
        sinks = form.sinks.double()[:, None, None].expand(*scores.shape[:2], 1)
        scores = torch.cat([scores, sinks], -1)
    weights = scores.softmax(-1)[..., : keys.shape[1]]
    return (weights @ values.repeat_interleave(group, 0)).transpose(0, 1)


def assert_right(isa: str, dtype: str, group: int, *shape: int, names=tuple(FORMS)) -> None:
    case = make_case(dtype, group, *shape)
    for name in names:
        actual = case.attend(CpuAttention(isa), make_form(name, group, shape[0]))
        wanted = expected(name, dtype, group, *shape)
        limit = TOLERANCE[dtype]
        torch.testing.assert_close(actual.double(), wanted, atol=limit, rtol=limit, msg=name)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("dim", [64, 80, 128, 256])
@pytest.mark.parametrize("group", [1, 2, 4, 8])
def test_decodes_and_chunks_over_scattered_blocks_are_softmax_attention(isa, dtype, dim, group):
    names = tuple(FORMS) if dim == 64 else ("plain", "all")
    assert_right(isa, dtype, group, dim, names=names)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("k_dim", "v_dim"), [(24, 20), (40, 136), (7, 3)])
@pytest.mark.parametrize("group", [3, 7])
def test_keys_and_values_may_have_any_dims(isa, dtype, k_dim, v_dim, group):
    assert_right(isa, dtype, group, k_dim, v_dim)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("block_size", [1, 20, 32, 300])
def test_blocks_may_have_any_size(isa, dtype, block_size):
    assert_right(isa, dtype, 2, 32, 32, block_size)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", FORMS)
def test_a_sequence_gets_bit_for_bit_the_same_alone_and_among_others(isa, dtype, name):
    case, form = make_case(dtype, 2, 64), make_form(name, 2, 64)
    together = case.attend(CpuAttention(isa), form).split(QUERIES)
    for sequence in range(len(QUERIES)):
        alone = case.attend(CpuAttention(isa), form, [sequence])
        assert torch.equal(alone, together[sequence])


@pytest.fixture
def many_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_number_of_threads_changes_no_bit(isa, dtype, many_threads):
    case, form = make_case(dtype, 4, 128), make_form("all", 4, 128)
    on_many = [case.attend(CpuAttention(isa), form) for _ in range(5)]
    torch.set_num_threads(1)
    on_one = case.attend(CpuAttention(isa), form)
    assert all(torch.equal(result, on_one) for result in on_many)


@pytest.mark.parametrize("name", FORMS)
def test_each_of_a_few_query_tokens_gets_what_it_gets_alone(isa, name):
    case, form = make_case("bfloat16", 2, 64), make_form(name, 2, 64)
    together = case.attend(CpuAttention(isa), form, [4])
    for token in range(QUERIES[4]):
        alone = case.attend(CpuAttention(isa), form, [4], token, token + 1)
        assert torch.equal(alone[0], together[token])


@pytest.mark.parametrize("name", FORMS)
def test_the_size_of_a_chunk_changes_no_bit(isa, name):
    case, form = make_case("bfloat16", 2, 64), make_form(name, 2, 64)
    whole = case.attend(CpuAttention(isa), form, [2])
    parts = [case.attend(CpuAttention(isa), form, [2], *bounds) for bounds in ((0, 53), (53, 130))]
    assert torch.equal(torch.cat(parts), whole)


def test_new_keys_and_values_are_stored_in_their_slots_and_nowhere_else(isa):
    case, form = make_case("bfloat16", 2, 64), make_form("plain", 2, 64)
    other = make_case.__wrapped__("bfloat16", 2, 64)
    case.attend(CpuAttention(isa), form)
    other.attend(TorchAttention(), form)
    assert case.memory == other.memory


def test_blocks_that_left_the_window_are_not_read(isa):
    case, form = make_case.__wrapped__("bfloat16", 2, 64), make_form("window", 2, 64)
    whole = case.attend(CpuAttention(isa), form)
    unused = (set(range(case.pool.num_blocks)) - set(case.tables.flat)).pop()
    for sequence, past in enumerate(PASTS):
        case.tables[sequence, : max(0, past + 1 - 40) // BLOCK] = unused  # full of NaN
    assert torch.equal(case.attend(CpuAttention(isa), form), whole)


def test_queries_whose_vectors_are_not_dense_are_copied():
    case, form = make_case("float32", 2, 64), make_form("plain", 2, 64)
    strided = torch.stack([case.query, case.query], -1)[..., 0]
    assert strided.stride(-1) == 2
    expected_output = case.attend(CpuAttention(), form)
    assert torch.equal(case._replace(query=strided).attend(CpuAttention(), form), expected_output)


def test_float16_is_left_to_torch():
    for dtype, is_supported in (("bfloat16", True), ("float32", True), ("float16", False)):
        spec = KVSpec.of_layers(BLOCK, [(HEADS, 64, 64, dtype)])
        assert CpuAttention.supports(spec) == is_supported


def test_kernels_and_torch_share_one_openmp_library():
    make_case("float32", 2, 64).attend(CpuAttention(), make_form("plain", 2, 64))
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if "libgomp" in line or "libiomp" in line}
    assert len(paths) == 1


@pytest.mark.parametrize("backend", [CpuAttention, TorchAttention])
@pytest.mark.parametrize("name", ["qwen3", "mistral-window", "gemma2", "gpt-oss", "deepseek-v3"])
def test_on_either_backend_the_engine_says_what_generate_says(
    name, backend, prompts, load_tiny, drive, greedy_sampling
):
    loaded, reference = load_tiny(name)
    driver = drive(loaded, max_step_tokens=16, runner=TorchRunner(loaded, backend()))
    sampling = greedy_sampling(20)
    driver.run([driver.request(i, prompt, sampling) for i, prompt in enumerate(prompts)])
    for index, prompt in enumerate(prompts):
        reference.assert_same(prompt, reference.generate(prompt, 20), driver.tokens[index])

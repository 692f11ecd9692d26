"""The compiled step of dense decoders: when it is used, and that it says what the model says."""

import numpy as np
import pytest
import torch

from baton.engine.protocol.batch import LayerMarks, SampleRow, StepBatch
from baton.engine.protocol.messages import SamplingParams
from baton.model.cpu import dense, native
from baton.model.cpu.dense import DenseForward, NotDense, dense_weights
from baton.model.forward_pass import ModuleForward, fastest_forward
from baton.model.load.load import LoadOptions, load_model
from baton.model.load.self_check import check_model
from baton.model.tensors.kv_pool import KVPool
from baton.model.torch_runner import TorchRunner

pytestmark = pytest.mark.usefixtures("compiled_kernels")
FAMILY = ("llama", "llama-rope3", "ministral", "mistral-window", "qwen2-yarn", "qwen3", "seed-oss")
WHOLE_PANELS = {"head_dim": 32}
LENGTHS = (70, 33, 18, 90)
# Query tokens of each sequence, step by step; a chunk of one is a decode.
CHUNKS = ((17, 1, 40, 1, 11), (1, 16, 1, 15, 0), (9, 1, 1, 7, 0), (1, 60, 1, 1, 27))
BLOCK, MAX_BLOCKS = 16, 6


class Driver:
    """Computes token sequences over a pool in chunks, all sequences of a step in one batch."""

    def __init__(self, forward, spec) -> None:
        self.forward = forward
        num_blocks = len(LENGTHS) * MAX_BLOCKS
        self.pool = KVPool(spec, memoryview(bytearray(num_blocks * spec.row_bytes)))
        self.tables = np.random.default_rng(5).permutation(num_blocks).astype(np.int32)
        self.tables = self.tables.reshape(-1, MAX_BLOCKS)
        forward.bind(self.pool)

    def run(self, sequences, chunks=CHUNKS) -> list[torch.Tensor]:
        """Logits after every token of each sequence, `[length, vocab]`."""
        done = [0] * len(sequences)
        found: list[list[torch.Tensor]] = [[] for _ in sequences]
        for counts in zip(*chunks, strict=True):
            parts = [(s, done[s], done[s] + n) for s, n in enumerate(counts) if n]
            logits = self.forward.logits(self.batch(sequences, parts)).clone()
            sizes = [end - start for _, start, end in parts]
            for (s, _, end), rows in zip(parts, logits.split(sizes), strict=True):
                found[s].append(rows)
                done[s] = end
        return [torch.cat(rows) if rows else torch.empty(0) for rows in found]

    def batch(self, sequences, parts) -> StepBatch:
        sizes = [end - start for _, start, end in parts]
        params = SamplingParams(max_tokens=1)
        return StepBatch(
            step=0,
            token_ids=np.concatenate([np.array(sequences[s][a:b], np.int64) for s, a, b in parts]),
            positions=np.concatenate([np.arange(a, b, dtype=np.int64) for _, a, b in parts]),
            query_starts=np.cumsum([0, *sizes], dtype=np.int32),
            context_lens=np.array([end for _, _, end in parts], np.int32),
            block_tables=self.tables[[s for s, _, _ in parts]],
            seq_ids=[s for s, _, _ in parts],
            sample_rows=[SampleRow(row, params, 0, 0) for row in range(sum(sizes))],
        )


@pytest.fixture
def sequences() -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(3, 500, length).tolist() for length in LENGTHS]


@pytest.fixture
def load(model_folder):
    def load_as(name, dtype="float32", **changes):
        folder = model_folder(name, **(WHOLE_PANELS | changes))
        return load_model(str(folder), LoadOptions(dtype=dtype))

    return load_as


@pytest.fixture(params=FAMILY)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_token_of_mixed_chunks_gets_the_models_own_logits(family, load_tiny, sequences):
    loaded, reference = load_tiny(family, **WHOLE_PANELS)
    forward = fastest_forward(loaded)
    assert isinstance(forward, DenseForward)
    for actual, tokens in zip(
        Driver(forward, loaded.kv_spec).run(sequences), sequences, strict=True
    ):
        torch.testing.assert_close(actual, reference.logits(tokens), atol=1e-4, rtol=1e-4)


def test_each_instruction_set_gives_the_models_own_logits(isa, load_tiny, sequences, monkeypatch):
    monkeypatch.setattr(dense, "best_isa", lambda: native.ISAS.index(isa))
    loaded, reference = load_tiny("qwen3", **WHOLE_PANELS)
    driver = Driver(fastest_forward(loaded), loaded.kv_spec)
    for actual, tokens in zip(driver.run(sequences), sequences, strict=True):
        torch.testing.assert_close(actual, reference.logits(tokens), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_decoded_tokens_do_not_depend_on_batch_mates_or_threads(load, sequences, dtype):
    loaded = load("qwen3", dtype)
    driver = Driver(fastest_forward(loaded), loaded.kv_spec)
    decodes = [[1] * 18 for _ in sequences]
    together = driver.run(sequences, decodes)
    torch.set_num_threads(2)
    for s in range(len(sequences)):
        alone = driver.run(sequences, [[n * (s == t) for n in c] for t, c in enumerate(decodes)])
        assert torch.equal(alone[s], together[s])
    torch.set_num_threads(1)


def test_bfloat16_stays_close_to_float32(load, sequences):
    """The bounds are those for logprobs of emitted tokens: 0.02 on average, 0.15 at most."""
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8}
    found = []
    for dtype in ("float32", "bfloat16"):
        loaded = load("qwen3", dtype, **sizes, initializer_range=0.05)
        rows = torch.cat(Driver(fastest_forward(loaded), loaded.kv_spec).run(sequences))
        found.append(rows.log_softmax(-1))
    best = found[0].argmax(-1, keepdim=True)
    difference = (found[1].gather(-1, best) - found[0].gather(-1, best)).abs()
    assert float(difference.mean()) < 0.02
    assert float(difference.max()) < 0.15


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_self_check_passes(family, load, dtype):
    loaded = load(family, dtype)
    check_model(loaded, TorchRunner(loaded))


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("gemma2", {}, "family"),
        ("llama", {"head_dim": 16}, "16 dimensions"),
        ("llama", {"head_dim": 160}, "160 dimensions"),
        ("llama", {"head_dim": 288}, "288 dimensions"),
        ("llama", {"hidden_act": "gelu"}, "silu"),
        ("mixtral", {}, "family"),
    ],
)
def test_other_models_go_through_their_modules(load, name, changes, reason):
    loaded = load(name, **changes)
    assert isinstance(fastest_forward(loaded), ModuleForward)
    with pytest.raises(NotDense, match=reason):
        dense_weights(loaded.model, loaded.attention_forms)


@pytest.mark.parametrize(("name", "num_threads"), [("qwen3", 1), ("qwen3", 2), ("gemma2", 1)])
def test_at_each_mark_the_first_layers_are_as_they_stay(load, sequences, name, num_threads):
    """Of the compiled step, and of transformers' modules."""
    loaded = load(name)
    driver = Driver(fastest_forward(loaded), loaded.kv_spec)
    rows = driver.pool.rows
    batch = driver.batch(sequences, [(0, 0, 70), (1, 0, 33)])
    seen = {}

    def reached(mark):
        end = loaded.kv_spec.stripe(range(mark))[1]
        seen[mark] = rows[:, :end].clone()

    batch.layer_marks = LayerMarks((1, 3), reached)
    torch.set_num_threads(num_threads)
    with torch.inference_mode():
        driver.forward.logits(batch)
    torch.set_num_threads(1)
    assert list(seen) == [1, 3]
    for early in seen.values():
        assert early.any()
        assert torch.equal(early, rows[:, : early.shape[1]])


def test_what_a_call_at_a_mark_raises_is_raised_after_the_step(load, sequences):
    loaded = load("llama")
    driver = Driver(fastest_forward(loaded), loaded.kv_spec)
    batch = driver.batch(sequences, [(0, 0, 5)])

    def reached(mark):
        raise ConnectionError(mark)

    batch.layer_marks = LayerMarks((2,), reached)
    with pytest.raises(ConnectionError):
        driver.forward.logits(batch)


def test_a_batch_without_rows_to_sample_has_no_logits(load, sequences):
    loaded = load("llama")
    driver = Driver(fastest_forward(loaded), loaded.kv_spec)
    batch = driver.batch(sequences, [(0, 0, 5)])
    batch.sample_rows = []
    assert driver.forward.logits(batch).shape == (0, 512)

"""TorchRunner alone, on batches laid out by hand: logits equal the model's own eager attention."""

import numpy as np
import pytest
import torch

from baton.engine.protocol.batch import SampleRow, StepBatch
from baton.engine.protocol.messages import SamplingParams
from baton.model.cpu.thread_count import LOOK_S, ThreadCount
from baton.model.torch_runner import TorchRunner

BLOCK = 16
NUM_BLOCKS = 40
LENGTHS = (70, 33, 18)
# Chunks of each sequence, step by step; they mix prefill chunks with single tokens.
CHUNKS = ((17, 1, 40, 1, 11), (1, 16, 1, 15), (9, 1, 1, 7))


@pytest.fixture
def sequences() -> list[list[int]]:
    rng = np.random.default_rng(11)
    return [rng.integers(3, 500, length).tolist() for length in LENGTHS]


def test_logits_of_mixed_chunks_equal_eager_attention(architecture, sequences, load_tiny):
    loaded, reference = load_tiny(architecture)
    runner = TorchRunner(loaded)
    runner.bind_pool(memoryview(bytearray(NUM_BLOCKS * loaded.kv_spec.row_bytes)))
    expected = [reference.logits(tokens) for tokens in sequences]
    for batch, ends in _steps(sequences):
        actual = runner.logits(batch)
        wanted = torch.stack([expected[s][end - 1] for s, end in ends])
        torch.testing.assert_close(actual, wanted, atol=1e-4, rtol=1e-4)


def test_a_sequence_alone_gives_the_logits_that_it_gives_in_a_batch(sequences, load_tiny):
    loaded, _ = load_tiny("qwen3")
    runner = TorchRunner(loaded)
    runner.bind_pool(memoryview(bytearray(NUM_BLOCKS * loaded.kv_spec.row_bytes)))
    together = {}
    for batch, ends in _steps(sequences):
        together.update(zip(ends, runner.logits(batch).clone(), strict=True))
    for s in range(len(sequences)):
        for batch, ends in _steps(sequences, only=s):
            for row, end in zip(runner.logits(batch), ends, strict=True):
                torch.testing.assert_close(row, together[end], atol=1e-5, rtol=1e-5)


def test_a_batch_without_rows_to_sample_returns_no_tokens(sequences, load_tiny):
    loaded, _ = load_tiny("llama")
    runner = TorchRunner(loaded)
    runner.bind_pool(memoryview(bytearray(NUM_BLOCKS * loaded.kv_spec.row_bytes)))
    batch, _ = next(_steps(sequences))
    batch.sample_rows = []
    assert runner.run(batch).tokens.tolist() == []


def test_sampling_too_uses_one_thread_while_all_would_wait(sequences, load_tiny, monkeypatch):
    loaded, _ = load_tiny("llama")
    runner = TorchRunner(loaded)
    runner.bind_pool(memoryview(bytearray(NUM_BLOCKS * loaded.kv_spec.row_bytes)))
    now_s = waited_s = 0.0
    monkeypatch.setattr(runner, "_threads", ThreadCount(lambda: waited_s, lambda: now_s))
    seen = []
    sample = runner._sampler.result
    monkeypatch.setattr(
        runner._sampler,
        "result",
        lambda *rows: seen.append(torch.get_num_threads()) or sample(*rows),
    )
    torch.set_num_threads(2)
    for (batch, _), waits in zip(_steps(sequences), (0.0, 1.2, 0.7, 0.1), strict=False):
        now_s += LOOK_S
        waited_s += waits * LOOK_S
        runner.run(batch)
    torch.set_num_threads(1)
    assert seen == [2, 1, 1, 2]


def _steps(sequences, only=None):
    """Batches that compute every chunk in turn, and (sequence, length so far) of their rows."""
    tables = np.random.default_rng(5).permutation(NUM_BLOCKS)[: 3 * 8].reshape(3, 8)
    done = [0] * len(sequences)
    for step in range(max(map(len, CHUNKS))):
        parts = []
        for s, chunks in enumerate(CHUNKS):
            if step < len(chunks) and only in (None, s):
                parts.append((s, done[s], done[s] + chunks[step]))
                done[s] += chunks[step]
        if parts:
            yield _batch(step, parts, sequences, tables), [(s, end) for s, _, end in parts]


def _batch(step, parts, sequences, tables):
    starts = np.cumsum([0] + [end - start for _, start, end in parts])
    greedy = SamplingParams(max_tokens=1)
    return StepBatch(
        step=step,
        token_ids=np.concatenate([np.array(sequences[s][a:b], np.int64) for s, a, b in parts]),
        positions=np.concatenate([np.arange(a, b, dtype=np.int64) for _, a, b in parts]),
        query_starts=starts.astype(np.int32),
        context_lens=np.array([b for _, _, b in parts], np.int32),
        block_tables=np.stack([tables[s] for s, _, _ in parts]).astype(np.int32),
        seq_ids=[s for s, _, _ in parts],
        sample_rows=[SampleRow(int(end) - 1, greedy, 0, 0) for end in starts[1:]],
    )

"""Before a model serves: does it say through our cache what it says by itself?

Two sequences in chunks and single tokens, flattened into common batches over scattered blocks,
against the model's own eager attention on each alone. A model that keeps a state beside keys and
values, or looks across the batch, differs grossly, and is refused rather than served wrongly.
"""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from baton.engine.protocol.batch import SampleRow, StepBatch
from baton.engine.protocol.messages import SamplingParams
from baton.model.load.load import LoadedModel
from baton.model.load.load_error import LoadError, one_line_errors
from baton.model.tensors.attention import PAGED

# Query tokens of each sequence, step by step.
_CHUNKS = ((9, 1, 12, 1), (1, 11, 1, 4))
_MAX_TOKENS = 24
# Mean difference over the standard deviation of the logits. Measured on random models: rounding
# gives 1e-6 in float32 and up to 0.06 in bfloat16, a lost recurrent state 1.2 in either.
_MAX_DIFFERENCE = {"float32": 1e-3, "bfloat16": 0.3, "float16": 0.3}
_ROW = SamplingParams(max_tokens=1)


class CheckedRunner(Protocol):
    """A Runner that also gives its logits."""

    def bind_pool(self, pool: memoryview) -> None:
        """As in Runner."""

    def logits(self, batch: StepBatch) -> torch.Tensor:
        """Float32 logits of the batch's sample rows, on the model's device."""


def check_model(loaded: LoadedModel, runner: CheckedRunner) -> None:
    """Raises LoadError when the results differ. Uses a small pool of its own for a moment."""
    with one_line_errors(loaded.source.name):
        difference = _difference(loaded, runner)
    if not difference <= _MAX_DIFFERENCE[loaded.kv_spec.layers[0].dtype]:
        raise LoadError(
            f"model {loaded.source.name}: {type(loaded.model).__name__} does not give the same "
            f"results in batches over a paged cache (logits differ by {difference:.2g} deviations)"
        )


def _difference(loaded: LoadedModel, runner: CheckedRunner) -> float:
    """The largest difference of any row, in standard deviations of its logits; NaN is kept."""
    sequences = _sequences(loaded)
    expected = [_own_logits(loaded, tokens) for tokens in sequences]
    num_blocks = 2 * loaded.kv_spec.num_blocks_for(_MAX_TOKENS)
    tables = np.arange(num_blocks, dtype=np.int32)[::-1].reshape(-1, 2).T
    runner.bind_pool(memoryview(bytearray(num_blocks * loaded.kv_spec.row_bytes)))
    differences: list[float] = []
    for batch, ends in _steps(sequences, np.ascontiguousarray(tables)):
        for logits, (sequence, end) in zip(runner.logits(batch), ends, strict=True):
            wanted = expected[sequence][end - 1]
            differences.append(float((logits - wanted).abs().mean() / wanted.std()))
    return float(np.max(differences))


def _sequences(loaded: LoadedModel) -> list[NDArray[np.int64]]:
    rng = np.random.default_rng(0)
    num_tokens = min(_MAX_TOKENS, loaded.max_model_len)
    lengths = [min(sum(chunks), num_tokens) for chunks in _CHUNKS]
    return [rng.integers(0, loaded.vocab_size, length) for length in lengths]


@torch.inference_mode()
def _own_logits(loaded: LoadedModel, tokens: NDArray[np.int64]) -> torch.Tensor:
    """Float32 logits after each token by transformers' eager attention, `[num_tokens, vocab]`."""
    loaded.model.set_attn_implementation("eager")
    device = loaded.model.device
    output = loaded.model(
        input_ids=torch.from_numpy(tokens)[None].to(device),
        position_ids=torch.arange(len(tokens), device=device)[None],
        use_cache=False,
    )
    loaded.model.set_attn_implementation(PAGED)
    logits: torch.Tensor = output.logits[0]
    return logits.float()


def _steps(
    sequences: list[NDArray[np.int64]], tables: NDArray[np.int32]
) -> Iterator[tuple[StepBatch, list[tuple[int, int]]]]:
    """Batches over both sequences, with (sequence, tokens so far) of each row."""
    done = [0, 0]
    for step, counts in enumerate(zip(*_CHUNKS, strict=True)):
        parts = []
        for sequence, count in enumerate(counts):
            start, end = done[sequence], min(done[sequence] + count, len(sequences[sequence]))
            if end > start:
                parts.append((sequence, start, end))
            done[sequence] = end
        if parts:
            yield _batch(step, parts, sequences, tables), [(s, end) for s, _, end in parts]


def _batch(
    step: int,
    parts: list[tuple[int, int, int]],
    sequences: list[NDArray[np.int64]],
    tables: NDArray[np.int32],
) -> StepBatch:
    counts = [end - start for _, start, end in parts]
    starts = np.cumsum([0, *counts], dtype=np.int32)
    return StepBatch(
        step=step,
        token_ids=np.concatenate([sequences[s][start:end] for s, start, end in parts]),
        positions=np.concatenate([np.arange(start, end) for _, start, end in parts]),
        query_starts=starts,
        context_lens=np.array([end for _, _, end in parts], dtype=np.int32),
        block_tables=tables[[s for s, _, _ in parts]],
        seq_ids=[s for s, _, _ in parts],
        sample_rows=[SampleRow(int(end) - 1, _ROW, 0, 0) for end in starts[1:]],
    )

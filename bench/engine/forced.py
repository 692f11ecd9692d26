"""Known texts through a runner, step by step as planned: the logits after each of their tokens.

A plan is a list of steps; a step says how many tokens of each text it computes. Nothing is sampled:
what a model would say is not of interest here, but how exactly it is computed.
"""

import time
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from baton.engine.protocol.batch import SampleRow, StepBatch
from baton.engine.protocol.messages import SamplingParams
from baton.wire.kv_spec import KVSpec

Plan = Sequence[Sequence[int]]
_ROW_PARAMS = SamplingParams(max_tokens=1)


class LogitsRunner(Protocol):
    """A Runner that also gives its logits."""

    kv_spec: KVSpec

    def bind_pool(self, pool: memoryview) -> None:
        """As in Runner."""

    def logits(self, batch: StepBatch) -> torch.Tensor:
        """Float32 logits of the batch's sample rows, valid until the next call."""


class ForcedTexts:
    """Texts of equal length, in a pool with room for all of them in scattered blocks."""

    def __init__(self, runner: LogitsRunner, texts: NDArray[np.int64]) -> None:
        """`texts` is `[num_texts, num_tokens]`."""
        self._runner = runner
        self._texts = texts
        spec = runner.kv_spec
        num_blocks = spec.num_blocks_for(texts.shape[1])
        order = np.random.default_rng(0).permutation(len(texts) * num_blocks)
        self._tables = order.astype(np.int32).reshape(len(texts), num_blocks)
        runner.bind_pool(memoryview(bytearray(order.size * spec.row_bytes)))

    def logits(self, plan: Plan, num_done: int = 0) -> torch.Tensor:
        """The first text's logits, after each token that the plan computes, `[num_tokens, vocab]`.

        The first `num_done` tokens of each text have been computed before.
        """
        found: list[torch.Tensor] = []
        done = np.full(len(self._texts), num_done, np.int64)
        for counts in plan:
            found.append(self._runner.logits(self._batch(done, counts)).clone())
            done[: len(counts)] += counts
        return torch.cat(found)

    def step_s(self, counts: Sequence[int], num_done: int) -> float:
        """The time of a step that computes `counts[i]` tokens of text i after `num_done`."""
        done = np.full(len(self._texts), num_done, np.int64)
        batch = self._batch(done, counts)
        batch.sample_rows = [
            SampleRow(int(end) - 1, _ROW_PARAMS, 0, 0) for end in batch.query_starts[1:]
        ]
        started = time.perf_counter()
        self._runner.logits(batch)
        return time.perf_counter() - started

    def _batch(self, done: NDArray[np.int64], counts: Sequence[int]) -> StepBatch:
        """The next `counts` tokens; logits after each one of the first text."""
        parts = [(t, int(done[t]), int(done[t]) + n) for t, n in enumerate(counts) if n]
        sizes = [end - start for _, start, end in parts]
        starts = np.cumsum([0, *sizes], dtype=np.int32)
        num_rows = counts[0]  # the first text's tokens come first
        return StepBatch(
            step=0,
            token_ids=np.concatenate([self._texts[t, start:end] for t, start, end in parts]),
            positions=np.concatenate([np.arange(start, end) for _, start, end in parts]),
            query_starts=starts,
            context_lens=np.array([end for _, _, end in parts], np.int32),
            block_tables=self._tables[[t for t, _, _ in parts]],
            seq_ids=[t for t, _, _ in parts],
            sample_rows=[SampleRow(row, _ROW_PARAMS, 0, 0) for row in range(num_rows)],
        )


def in_chunks(num_tokens: int, size: int) -> list[list[int]]:
    """The plan that computes one text in chunks of `size`."""
    return [[min(size, num_tokens - start)] for start in range(0, num_tokens, size)]

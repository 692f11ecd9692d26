"""Runs an embedding model on a CPU: adds up the states of the tokens that a vector is made of."""

from dataclasses import replace

import numpy as np
import torch

from baton.engine.protocol.batch import SampleRow, StepBatch, StepResult
from baton.engine.protocol.messages import SamplingParams
from baton.model.load.load import LoadedModel
from baton.model.torch_runner import TorchRunner

_PARAMS = SamplingParams(max_tokens=1)


class TorchPoolingRunner(TorchRunner):
    """A TorchRunner whose logits are states (`load/pooled_model.py`). It samples nothing."""

    def __init__(self, loaded: LoadedModel, *, is_deterministic: bool = False) -> None:
        super().__init__(loaded, is_deterministic=is_deterministic)
        assert loaded.pooler is not None, "it gives states"
        self.pooling = loaded.pooler.pooling
        score = loaded.pooler.score
        self._score = None if score is None else score.numpy()
        # By flat query token: the row that asks for its state.
        self._rows: list[SampleRow] = []

    @torch.inference_mode()
    def run(self, batch: StepBatch) -> StepResult:
        for source, target in batch.block_copies:
            self._pool.copy_block(source, target)
        counts = [end - first for first, end in batch.pooled_spans]
        rows = [row for span in batch.pooled_spans for row in self._rows_of(*span)]
        states = self.logits(replace(batch, sample_rows=rows))
        # Of a probe: it has rows, and nobody reads its token.
        tokens = np.zeros(len(batch.sample_rows), np.int64)
        if not counts:
            return StepResult(tokens)
        starts = np.cumsum([0, *counts[:-1]])
        sums = np.add.reduceat(states.numpy(), starts)
        if self._score is not None:
            sums = (sums @ self._score)[:, None]
        return StepResult(tokens, pooled_sums=sums)

    def _rows_of(self, first_row: int, end_row: int) -> list[SampleRow]:
        for row in range(len(self._rows), end_row):
            self._rows.append(SampleRow(row, _PARAMS, choice=0, output_index=0))
        return self._rows[first_row:end_row]

"""Turns a step plan into the flat arrays of a StepBatch, in buffers that every step reuses."""

import numpy as np
from numpy.typing import NDArray

from baton.engine.batch import SampleRow, StepBatch
from baton.engine.scheduler import StepPlan
from baton.engine.sequence import Sequence


class BatchBuilder:
    """Owns the buffers; a batch is valid until the next `build`."""

    def __init__(self, max_num_seqs: int, max_step_tokens: int, max_blocks_per_seq: int) -> None:
        self._token_ids = np.zeros(max_step_tokens, np.int64)
        self._positions = np.zeros(max_step_tokens, np.int64)
        self._query_starts = np.zeros(max_num_seqs + 1, np.int32)
        self._context_lens = np.zeros(max_num_seqs, np.int32)
        self._block_tables = np.zeros((max_num_seqs, max_blocks_per_seq), np.int32)
        self._all_positions = np.arange(max_step_tokens, dtype=np.int64)

    def build(self, step: int, plan: StepPlan) -> StepBatch:
        """The batch of a plan that has work."""
        num_seqs = len(plan.sequences)
        start = 0
        for row, (seq, count) in enumerate(zip(plan.sequences, plan.num_new_tokens, strict=True)):
            self._fill_tokens(seq, start, count)
            start += count
            self._query_starts[row + 1] = start
            self._context_lens[row] = seq.num_computed_tokens + count
        return StepBatch(
            step=step,
            token_ids=self._token_ids[:start],
            positions=self._positions[:start],
            query_starts=self._query_starts[: num_seqs + 1],
            context_lens=self._context_lens[:num_seqs],
            block_tables=self._fill_tables(plan.sequences),
            seq_ids=[seq.request.seq_id for seq in plan.sequences],
            sample_rows=_sample_rows(plan),
        )

    def _fill_tokens(self, seq: Sequence, start: int, count: int) -> None:
        first = seq.num_computed_tokens
        if count == 1:
            self._token_ids[start] = seq.tokens(first, first + 1)[0]
            self._positions[start] = first
            return
        end = start + count
        self._token_ids[start:end] = seq.tokens(first, first + count)
        np.add(self._all_positions[:count], first, out=self._positions[start:end])

    def _fill_tables(self, sequences: list[Sequence]) -> NDArray[np.int32]:
        width = max(seq.table.num_blocks for seq in sequences)
        tables = self._block_tables[: len(sequences), :width]
        tables.fill(-1)
        for row, seq in enumerate(sequences):
            tables[row, : seq.table.num_blocks] = seq.table.ids
        return tables


def _sample_rows(plan: StepPlan) -> list[SampleRow]:
    """One row for each sequence that this step computes to its last token."""
    return [
        SampleRow(row, seq.request.sampling, seq.request.choice, seq.num_output_tokens)
        for row, (seq, count) in enumerate(zip(plan.sequences, plan.num_new_tokens, strict=True))
        if count == seq.num_uncomputed_tokens
    ]

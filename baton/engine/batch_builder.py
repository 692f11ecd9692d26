"""Turns a step plan into the flat arrays of a StepBatch, in buffers that every step reuses."""

import numpy as np
from numpy.typing import NDArray

from baton.engine.batch import SampleRow, StepBatch
from baton.engine.sample_rows import rows_of
from baton.engine.scheduler import StepPlan, Work


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
        num_seqs = len(plan.works)
        sample_rows: list[SampleRow] = []
        start = 0
        for row, work in enumerate(plan.works):
            self._fill_tokens(work, start)
            work.rows = rows_of(work, start)
            sample_rows += work.rows
            start += work.num_query_tokens
            self._query_starts[row + 1] = start
            self._context_lens[row] = work.seq.num_computed_tokens + work.num_query_tokens
        return StepBatch(
            step=step,
            token_ids=self._token_ids[:start],
            positions=self._positions[:start],
            query_starts=self._query_starts[: num_seqs + 1],
            context_lens=self._context_lens[:num_seqs],
            block_tables=self._fill_tables(plan.works),
            seq_ids=[work.seq.request.seq_id for work in plan.works],
            sample_rows=sample_rows,
        )

    def _fill_tokens(self, work: Work, start: int) -> None:
        seq, count = work.seq, work.num_query_tokens
        first = seq.num_computed_tokens
        if count == 1:
            self._token_ids[start] = seq.tokens(first, first + 1)[0]
            self._positions[start] = first
            return
        end = start + count
        drafted = end - len(work.draft)
        self._token_ids[start:drafted] = seq.tokens(first, first + work.num_new_tokens)
        self._token_ids[drafted:end] = work.draft
        np.add(self._all_positions[:count], first, out=self._positions[start:end])

    def _fill_tables(self, works: list[Work]) -> NDArray[np.int32]:
        width = max(work.seq.table.num_blocks for work in works)
        tables = self._block_tables[: len(works), :width]
        tables.fill(-1)
        for row, work in enumerate(works):
            table = work.seq.table
            tables[row, : table.num_blocks] = table.ids
        return tables

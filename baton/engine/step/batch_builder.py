"""Turns a step plan into the flat arrays of a StepBatch, in buffers that every step reuses.

Here is also decided which rows of logits a sequence's part of a step uses. The logits after
position p are about the token at position p + 1. Rows of a sequence are in the order of their
positions, all its prompt rows first; those of its forks come last.
"""

import numpy as np
from numpy.typing import NDArray

from baton.engine.protocol.batch import SampleRow, StepBatch, TokenHistory
from baton.engine.protocol.messages import SamplingParams
from baton.engine.sequence.sequence import Sequence
from baton.engine.step.step_plan import StepPlan, Work

_TOKEN_ID = 0
_NO_SEQUENCE = -1


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


def probe_batch(step: int, block_id: int) -> StepBatch:
    """A step of one token that belongs to no request: proof that an idle core can still step.

    It computes in a block beyond those that the engine hands out, so that it has room however full
    the pool is, touches no cache, and appears in no figure.
    """
    return StepBatch(
        step=step,
        token_ids=np.array([_TOKEN_ID], np.int64),
        positions=np.zeros(1, np.int64),
        query_starts=np.array([0, 1], np.int32),
        context_lens=np.ones(1, np.int32),
        block_tables=np.array([[block_id]], np.int32),
        seq_ids=[_NO_SEQUENCE],
        sample_rows=[SampleRow(0, SamplingParams(max_tokens=1), choice=0, output_index=0)],
    )


def rows_of(work: Work, first_row: int) -> list[SampleRow]:
    """The rows of `work`, whose first query token is token `first_row` of the flat batch."""
    rows = _prompt_rows(work, first_row)
    if work.completes:
        last_row = first_row + work.num_new_tokens - 1
        for ahead in range(len(work.draft) + 1):
            rows.append(_sampled_row(work.seq, last_row, work.draft[:ahead]))
        rows += [_sampled_row(fork, last_row) for fork in work.forks]
    return rows


def _prompt_rows(work: Work, first_row: int) -> list[SampleRow]:
    """One for each prompt token whose predecessor is computed now, unless judged before."""
    seq = work.seq
    params, choice = seq.request.sampling, seq.request.choice
    if params.num_prompt_logprobs < 0:
        return []
    start = max(seq.num_computed_tokens + 1, seq.num_judged_tokens)
    end = min(seq.num_computed_tokens + work.num_new_tokens + 1, seq.num_prompt_tokens)
    shift = first_row - seq.num_computed_tokens - 1
    tokens = seq.tokens(start, end).tolist() if end > start else []
    return [
        SampleRow(shift + position, params, choice, 0, forced_token=token)
        for position, token in enumerate(tokens, start)
    ]


def _sampled_row(seq: Sequence, last_row: int, draft: tuple[int, ...] = ()) -> SampleRow:
    """The row after the sequence's last token, which is token `last_row`, and then its draft."""
    request = seq.request
    history = None
    if request.sampling.needs_history:
        tokens = seq.tokens(0, seq.num_tokens)
        history = TokenHistory(request.seq_id, tokens, seq.num_prompt_tokens, draft)
    return SampleRow(
        last_row + len(draft),
        request.sampling,
        request.choice,
        seq.num_output_tokens + len(draft),
        history=history,
    )

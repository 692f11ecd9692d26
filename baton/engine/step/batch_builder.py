"""Turns a step plan into a StepBatch: flat arrays, in buffers that every step reuses.

The copies and masks go with it that the step needs. Also decides which rows of logits a sequence's
part of a step uses. The logits after position p are about the token at position p + 1. Rows of a
sequence are in the order of their positions, all its prompt rows first; those of its forks come
last.
"""

import numpy as np
from numpy.typing import NDArray

from baton.engine.protocol.batch import PooledSpan, SampleRow, StepBatch, TokenHistory
from baton.engine.protocol.messages import SamplingParams
from baton.engine.sequence.pooled_sum import PooledSum
from baton.engine.sequence.sequence import Sequence
from baton.engine.step.engine_state import EngineState
from baton.engine.step.step_plan import ScheduledSequence, StepPlan

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
        self._all_positions = np.arange(max_step_tokens + 1, dtype=np.int64)
        # The plain decodes of the last batch, their ids and their rows of logits.
        self._plain: list[Sequence] = []
        self._plain_ids: list[int] = []
        self._plain_rows: list[SampleRow] = []
        # Of each row of the tables: the version of the table in it, and its blocks.
        self._versions = [-1] * max_num_seqs
        self._widths = np.zeros(max_num_seqs, np.int32)

    def build(self, step: int, plan: StepPlan, *, is_ahead: bool = False) -> StepBatch:
        """The batch of a plan that is not empty. Ahead: the step before it runs still."""
        sequences = plan.all
        num_seqs = len(sequences)
        tokens_from = _tokens_from(plan.plain) if is_ahead else None
        sample_rows = self._fill_plain(plan.plain)
        pooled_spans: list[PooledSpan] = []
        start = len(plan.plain)
        for place, scheduled in enumerate(plan.sequences, start):
            count = scheduled.num_query_tokens
            self._fill_tokens(scheduled, start, count)
            scheduled.rows = rows_of(scheduled, start)
            sample_rows += scheduled.rows
            if scheduled.seq.pooled is not None:
                pooled_spans += _spans_of(scheduled, scheduled.seq.pooled, start)
            start += count
            self._query_starts[place + 1] = start
            self._context_lens[place] = scheduled.seq.num_computed_tokens + count
        plan.seq_ids = self._plain_ids + [each.seq.request.seq_id for each in plan.sequences]
        return StepBatch(
            step=step,
            token_ids=self._token_ids[:start],
            positions=self._positions[:start],
            query_starts=self._query_starts[: num_seqs + 1],
            context_lens=self._context_lens[:num_seqs],
            block_tables=self._fill_tables(sequences),
            seq_ids=plan.seq_ids,
            sample_rows=sample_rows,
            pooled_spans=pooled_spans,
            tokens_from=tokens_from,
        )

    def _fill_plain(self, sequences: list[Sequence]) -> list[SampleRow]:
        """One token of each; returns their rows. Those that the last batch had in the same places
        are one token further."""
        num_seqs = len(sequences)
        positions = self._positions[:num_seqs]
        if sequences == self._plain:
            positions += 1
            for row in self._plain_rows:
                row.output_index += 1
        else:
            positions[:] = [seq.num_computed_tokens for seq in sequences]
            self._plain = sequences
            self._plain_ids = [seq.request.seq_id for seq in sequences]
            self._plain_rows = [_plain_row(seq, place) for place, seq in enumerate(sequences)]
        self._token_ids[:num_seqs] = [seq.last_token for seq in sequences]
        self._query_starts[: num_seqs + 1] = self._all_positions[: num_seqs + 1]
        np.add(positions, 1, out=self._context_lens[:num_seqs], casting="unsafe")
        return self._plain_rows.copy()

    def _fill_tokens(self, scheduled: ScheduledSequence, start: int, count: int) -> None:
        seq = scheduled.seq
        assert seq.num_awaited == 0, "only a plain decode's last token may be unknown"
        first = seq.num_computed_tokens
        if count == 1:
            self._token_ids[start] = seq.tokens(first, first + 1)[0]
            self._positions[start] = first
            return
        end = start + count
        drafted = end - len(scheduled.draft)
        self._token_ids[start:drafted] = seq.tokens(first, first + scheduled.num_new_tokens)
        self._token_ids[drafted:end] = scheduled.draft
        np.add(self._all_positions[:count], first, out=self._positions[start:end])

    def _fill_tables(self, sequences: list[Sequence]) -> NDArray[np.int32]:
        """The tables; a row that is as the last step left it is not written again."""
        rows, num_seqs = self._block_tables, len(sequences)
        versions = [seq.table.version for seq in sequences]
        for place, version in enumerate(versions):
            if self._versions[place] != version:
                table = sequences[place].table
                rows[place, : table.num_blocks] = table.ids
                rows[place, table.num_blocks :] = -1
                self._widths[place] = table.num_blocks
        self._versions[:num_seqs] = versions
        return rows[:num_seqs, : self._widths[:num_seqs].max(initial=0)]


class StepBatches:
    """Builds one engine's batches with all that belongs to them; each is valid until the next."""

    def __init__(self, state: EngineState, max_step_tokens: int) -> None:
        info = state.info
        max_blocks = info.kv_spec.num_blocks_for(info.max_model_len)
        self._state = state
        self._builder = BatchBuilder(info.max_num_seqs, max_step_tokens, max_blocks)

    def build(self, step: int, plan: StepPlan, *, is_ahead: bool) -> StepBatch:
        """The batch of a plan that is not empty. Ahead: the step before it runs still."""
        state = self._state
        if plan.is_probe:
            return probe_batch(step, state.info.num_blocks)
        batch = self._builder.build(step, plan, is_ahead=is_ahead)
        batch.block_copies = state.manager.take_block_copies()
        if state.grammars is not None:
            batch.masks = state.grammars.masks(plan.sequences)
        return batch


def probe_batch(step: int, block_id: int) -> StepBatch:
    """The step of one token that belongs to no request: proof that an idle core can still step.

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


def _tokens_from(sequences: list[Sequence]) -> NDArray[np.int32]:
    """The row of the step before whose token each decode awaits, -1 if it awaits none."""
    rows = [seq.row.token_row if seq.num_awaited and seq.row else -1 for seq in sequences]
    return np.array(rows, np.int32)


def _plain_row(seq: Sequence, place: int) -> SampleRow:
    """The row of a plain decode, which it keeps, in this place of the batch."""
    if seq.row is None:
        seq.row = SampleRow(place, seq.request.sampling, seq.request.choice, 0)
    seq.row.token_row = place
    seq.row.output_index = seq.num_tokens - seq.num_prompt_tokens
    return seq.row


def rows_of(scheduled: ScheduledSequence, first_row: int) -> list[SampleRow]:
    """The sequence's rows; its first query token is token `first_row` of the flat batch."""
    asks_prompt = scheduled.seq.request.sampling.num_prompt_logprobs is not None
    rows = _prompt_rows(scheduled, first_row) if asks_prompt else []
    if scheduled.completes and scheduled.seq.pooled is None:
        last_row = first_row + scheduled.num_new_tokens - 1
        for ahead in range(len(scheduled.draft) + 1):
            rows.append(_sampled_row(scheduled.seq, last_row, scheduled.draft[:ahead]))
        for fork in scheduled.forks:
            rows.append(_sampled_row(fork, last_row))
    return rows


def _spans_of(scheduled: ScheduledSequence, pooled: PooledSum, first_row: int) -> list[PooledSpan]:
    """The tokens that go into the sequence's vector, if there are any in this step."""
    span = pooled.span(first_row, scheduled.num_new_tokens, completes=scheduled.completes)
    scheduled.is_pooled = span is not None
    return [] if span is None else [span]


def _prompt_rows(scheduled: ScheduledSequence, first_row: int) -> list[SampleRow]:
    """One row for each prompt token behind one that is computed now, unless it was reported."""
    seq = scheduled.seq
    params, choice = seq.request.sampling, seq.request.choice
    start = max(seq.num_computed_tokens + 1, seq.next_prompt_logprob)
    end = min(seq.num_computed_tokens + scheduled.num_new_tokens + 1, seq.num_prompt_tokens)
    shift = first_row - seq.num_computed_tokens - 1
    tokens = seq.tokens(start, end).tolist() if end > start else []
    return [
        SampleRow(
            shift + position,
            params,
            choice,
            0,
            num_logprobs=params.num_prompt_logprobs,
            forced_token=token,
        )
        for position, token in enumerate(tokens, start)
    ]


def _sampled_row(seq: Sequence, last_row: int, draft: tuple[int, ...] = ()) -> SampleRow:
    """The row after the sequence's last token, which is token `last_row`, and then its draft."""
    request = seq.request
    history = None
    if seq.needs_history:
        tokens = seq.tokens(0, seq.num_tokens)
        history = TokenHistory(request.seq_id, tokens, seq.num_prompt_tokens, draft)
    return SampleRow(
        last_row + len(draft),
        request.sampling,
        request.choice,
        seq.num_output_tokens + len(draft),
        history=history,
        num_logprobs=request.sampling.num_logprobs,
    )

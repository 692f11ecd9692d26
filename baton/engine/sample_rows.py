"""Which rows of logits a sequence's part of a step uses: prompt tokens to judge, tokens to sample.

The logits after position p are about the token at position p + 1. Rows of a sequence are in the
order of their positions, all its prompt rows first.
"""

from baton.engine.batch import SampleRow, TokenHistory
from baton.engine.scheduler import Work
from baton.engine.sequence import Sequence


def rows_of(work: Work, first_row: int) -> list[SampleRow]:
    """The rows of `work`, whose first query token is token `first_row` of the flat batch."""
    rows = _prompt_rows(work, first_row)
    if work.completes:
        last_row = first_row + work.num_new_tokens - 1
        rows += [_sampled_row(work, last_row, ahead) for ahead in range(len(work.draft) + 1)]
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


def _sampled_row(work: Work, last_row: int, ahead: int) -> SampleRow:
    """The row after the sequence's last token (0) or after its draft's first `ahead` tokens."""
    seq = work.seq
    request = seq.request
    history = None
    if request.sampling.needs_history:
        history = _history(seq, work, ahead)
    return SampleRow(
        last_row + ahead,
        request.sampling,
        request.choice,
        seq.num_output_tokens + ahead,
        history=history,
    )


def _history(seq: Sequence, work: Work, ahead: int) -> TokenHistory:
    tokens = seq.tokens(0, seq.num_tokens)
    return TokenHistory(seq.request.seq_id, tokens, seq.num_prompt_tokens, work.draft[:ahead])

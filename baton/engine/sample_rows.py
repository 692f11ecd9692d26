"""Which rows of logits a sequence's part of a step uses: prompt tokens to judge, tokens to sample.

The logits after position p are about the token at position p + 1. Rows of a sequence are in the
order of their positions, all its prompt rows first; those of its forks come last.
"""

from baton.engine.batch import SampleRow, TokenHistory
from baton.engine.scheduler import Work
from baton.engine.sequence import Sequence


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

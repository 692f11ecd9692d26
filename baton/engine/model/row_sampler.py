"""What a step's sample rows bring: logits -> edits -> tokens, and logprobs of the raw logits."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from baton.engine.batch import RowLogprobs, SampleRow, StepResult
from baton.engine.model.logit_edits import LogitEditor, is_edited
from baton.engine.model.logprobs import num_asked, row_logprobs
from baton.engine.model.sampler import sample


class RowSampler:
    """One per runner: it keeps what grows with the sequences."""

    def __init__(self, eos_token_ids: Sequence[int]) -> None:
        self._editor = LogitEditor(eos_token_ids)

    def result(
        self, logits: torch.Tensor, rows: Sequence[SampleRow], masks: NDArray[np.int32] | None
    ) -> StepResult:
        """The result of `rows`; `logits` float32 `[num_rows, vocab_size]` are used up."""
        asking = [index for index, row in enumerate(rows) if num_asked(row) >= 0]
        edits = any(is_edited(row) for row in rows)
        raw = logits
        if asking and (edits or len(asking) < len(rows)):
            raw = logits[asking]  # a copy
        if edits:
            self._editor.edit(logits, rows, masks)
        result = StepResult(sample(logits, rows))
        if asking:
            num_tops = [num_asked(rows[index]) for index in asking]
            told = row_logprobs(raw, result.tokens[asking], num_tops)
            result.logprobs = _spread(told, asking, len(rows))
        return result


def _spread(told: list[RowLogprobs], indexes: list[int], num_rows: int) -> list[RowLogprobs | None]:
    logprobs: list[RowLogprobs | None] = [None] * num_rows
    for index, row in zip(indexes, told, strict=True):
        logprobs[index] = row
    return logprobs

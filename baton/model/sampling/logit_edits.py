"""Changes logits before tokens are chosen: bias, masks, tokens that may not end it, penalties.

In this order, and only in the rows that ask; the other rows are not read. Definitions: OpenAI's for
bias, presence and frequency (counted over the output), vLLM's for repetition (prompt and output).
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from baton.engine.protocol.batch import SampleRow
from baton.model.sampling.token_counts import CountsCache

_Positions = tuple[torch.Tensor, torch.Tensor]  # row and token id of each logit
_Rows = Sequence[tuple[int, SampleRow]]
# As `forbid_tokens`.
Forbid = Callable[[torch.Tensor, Sequence[int], NDArray[np.int32]], None]


def is_edited(row: SampleRow) -> bool:
    """The row's logits change before its token is chosen."""
    params = row.params
    return row.forced_token is None and (
        row.mask_row is not None
        or row.history is not None
        or row.output_index < params.min_tokens
        or bool(params.logit_bias)
    )


def forbid_tokens(logits: torch.Tensor, indexes: Sequence[int], words: NDArray[np.int32]) -> None:
    """Make tokens impossible in the rows of `indexes`: where the bit in its `words` is 0."""
    for index, row in zip(indexes, words.astype("<i4", copy=False), strict=True):
        bits = np.unpackbits(row.view(np.uint8), count=logits.shape[1], bitorder="little")
        logits[index].masked_fill_(torch.from_numpy(bits == 0), -torch.inf)


class LogitEditor:
    """Keeps the token counts of the sequences that have penalties."""

    def __init__(self, eos_token_ids: Sequence[int], forbid: Forbid = forbid_tokens) -> None:
        self._forbid = forbid
        self._eos_token_ids = tuple(eos_token_ids)
        self._counts = CountsCache()

    def edit(
        self, logits: torch.Tensor, rows: Sequence[SampleRow], masks: NDArray[np.int32] | None
    ) -> None:
        """Change float32 `logits` `[num_rows, vocab_size]` in place; `masks` as in TokenMasks."""
        edited = [(index, row) for index, row in enumerate(rows) if is_edited(row)]
        _add_biases(logits, [pair for pair in edited if pair[1].params.logit_bias])
        if masks is not None:
            self._apply_masks(logits, edited, masks)
        self._forbid_ends(
            logits, [pair for pair in edited if pair[1].output_index < pair[1].params.min_tokens]
        )
        self._penalise(logits, [pair for pair in edited if pair[1].history is not None])

    def _apply_masks(self, logits: torch.Tensor, rows: _Rows, masks: NDArray[np.int32]) -> None:
        chosen = [(index, row.mask_row) for index, row in rows if row.mask_row is not None]
        if chosen:
            indexes, mask_rows = zip(*chosen, strict=True)
            self._forbid(logits, indexes, masks[list(mask_rows)])

    def _forbid_ends(self, logits: torch.Tensor, rows: _Rows) -> None:
        for index, row in rows:
            ends = set(row.params.stop_token_ids)
            if not row.params.ignore_eos:
                ends.update(self._eos_token_ids)
            ids = torch.tensor(sorted(ends), dtype=torch.int64, device=logits.device)
            if row.mask_row is not None:
                # A mask that leaves only ends knows better: nothing else would be well-formed.
                num_allowed = torch.isfinite(logits[index]).sum()
                if bool(num_allowed == torch.isfinite(logits[index, ids]).sum()):
                    continue
            logits[index, ids] = -torch.inf

    def _penalise(self, logits: torch.Tensor, rows: _Rows) -> None:
        if not rows:
            return
        histories = [row.history for _, row in rows if row.history is not None]
        counts = self._counts.counts_of(histories)
        lengths = np.array([len(ids) for ids, _ in counts])
        positions = _positions(logits, rows, [ids for ids, _ in counts])
        uses = torch.from_numpy(np.concatenate([uses for _, uses in counts])).to(logits.device)

        def spread(name: str) -> torch.Tensor:
            values = np.array([getattr(row.params, name) for _, row in rows], np.float32)
            return torch.from_numpy(np.repeat(values, lengths)).to(logits.device)

        values, repetition = logits[positions], spread("repetition_penalty")
        values = torch.where(values > 0, values / repetition, values * repetition)
        values -= spread("frequency_penalty") * uses
        values -= spread("presence_penalty") * (uses > 0)
        logits[positions] = values


def _add_biases(logits: torch.Tensor, rows: _Rows) -> None:
    if not rows:
        return
    biases = [np.array(row.params.logit_bias, np.float64) for _, row in rows]
    positions = _positions(logits, rows, [bias[:, 0].astype(np.int64) for bias in biases])
    added = np.concatenate([bias[:, 1] for bias in biases]).astype(np.float32)
    logits[positions] += torch.from_numpy(added).to(logits.device)


def _positions(logits: torch.Tensor, rows: _Rows, ids: list[NDArray[np.int64]]) -> _Positions:
    """The logits of `ids[i]` in row i, for all rows at once."""
    indexes = np.array([index for index, _ in rows])
    row_of_each = np.repeat(indexes, [len(some) for some in ids])
    device = logits.device
    return (
        torch.from_numpy(row_of_each).to(device),
        torch.from_numpy(np.concatenate(ids)).to(device),
    )

"""Makes the results of a step's sample rows: edits, tokens, and logprobs of the raw logits."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from baton.engine.protocol.batch import RowLogprobs, SampleRow, StepResult
from baton.model.sampling.logit_edits import Forbid, LogitEditor, forbid_tokens, is_edited
from baton.model.sampling.sampler import sample


class SamplingOps(NamedTuple):
    """The work over whole rows of logits, which a device has its own kernels for."""

    sample: Callable[[torch.Tensor, Sequence[SampleRow]], NDArray[np.int64]] = sample
    forbid: Forbid = forbid_tokens


class RowSampler:
    """One per runner: it keeps what grows with the sequences.

    A deterministic one takes row by row: torch's exp and log round by where in a tensor a value is.
    Edits are single additions, products and quotients, which round alike everywhere.
    """

    def __init__(
        self,
        eos_token_ids: Sequence[int],
        ops: SamplingOps | None = None,
        *,
        is_deterministic: bool = False,
    ) -> None:
        self._ops = ops or SamplingOps()
        self._editor = LogitEditor(eos_token_ids, self._ops.forbid)
        self._is_deterministic = is_deterministic

    def result(
        self, logits: torch.Tensor, rows: Sequence[SampleRow], masks: NDArray[np.int32] | None
    ) -> StepResult:
        """The result of `rows`; `logits` float32 `[num_rows, vocab_size]` are used up."""
        num_tops = {
            index: row.num_logprobs
            for index, row in enumerate(rows)
            if row.num_logprobs is not None
        }
        asking = list(num_tops)
        edits = any(is_edited(row) for row in rows)
        raw = logits
        if asking and (edits or len(asking) < len(rows)):
            raw = logits[asking]  # a copy
        if edits:
            self._editor.edit(logits, rows, masks)
        result = StepResult(self._sample(logits, rows))
        if asking:
            tokens = result.tokens[asking]
            found = self._logprobs(raw, tokens, list(num_tops.values()))
            forced = [i for i, row in enumerate(asking) if rows[row].forced_token is not None]
            if forced:
                _add_ranks(found, raw, tokens, forced)
            result.logprobs = _spread(found, asking, len(rows))
        return result

    def _sample(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> NDArray[np.int64]:
        if not self._is_deterministic:
            return self._ops.sample(logits, rows)
        alone = [slice(index, index + 1) for index in range(len(rows))]
        return np.concatenate([self._ops.sample(logits[i], rows[i]) for i in alone])

    def _logprobs(
        self, raw: torch.Tensor, tokens: NDArray[np.int64], num_tops: Sequence[int]
    ) -> list[RowLogprobs]:
        if not self._is_deterministic:
            return row_logprobs(raw, tokens, num_tops)
        alone = [slice(index, index + 1) for index in range(len(tokens))]
        return [row_logprobs(raw[i], tokens[i], num_tops[i])[0] for i in alone]


def _spread(
    found: list[RowLogprobs], indexes: list[int], num_rows: int
) -> list[RowLogprobs | None]:
    logprobs: list[RowLogprobs | None] = [None] * num_rows
    for index, row in zip(indexes, found, strict=True):
        logprobs[index] = row
    return logprobs


def _add_ranks(
    found: list[RowLogprobs], raw: torch.Tensor, tokens: NDArray[np.int64], chosen: list[int]
) -> None:
    """Tell the ranks of the tokens of the chosen rows, as vLLM counts them."""
    logits = raw if len(chosen) == len(found) else raw[chosen]
    own = torch.from_numpy(tokens[chosen]).to(raw.device)[:, None]
    ranks = (logits >= logits.gather(-1, own)).sum(-1).tolist()
    for row, rank in zip(chosen, ranks, strict=True):
        found[row] = found[row]._replace(rank=rank)


def row_logprobs(
    logits: torch.Tensor, tokens: NDArray[np.int64], num_tops: Sequence[int]
) -> list[RowLogprobs]:
    """Logprobs of each row's token and its `num_tops[row]` likeliest, equals by ascending id.

    Raw: before bias, masks, penalties and temperature, as OpenAI and vLLM report them. In float32.
    `logits`: float32 `[num_rows, vocab_size]`, unchanged.
    """
    totals = logits.logsumexp(-1, keepdim=True)
    own = torch.from_numpy(tokens).to(logits.device)[:, None]
    logprobs = (logits.gather(-1, own) - totals).flatten().tolist()
    num_top = min(max(num_tops), logits.shape[1])
    if num_top == 0:
        return [RowLogprobs(logprob, [], []) for logprob in logprobs]
    values, ids = largest(logits, num_top)
    tops = zip(ids.tolist(), (values - totals).tolist(), strict=True)
    return [
        RowLogprobs(logprob, top_ids[:num], top_logprobs[:num])
        for logprob, (top_ids, top_logprobs), num in zip(logprobs, tops, num_tops, strict=True)
    ]


def largest(values: torch.Tensor, num: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `num` largest of each row with their ids, descending, equals by ascending id.

    Where equals reach beyond `num`, those with the lowest ids are in: bfloat16 logits have many.
    """
    top = values.topk(min(num + 1, values.shape[1]))
    ids = top.indices[:, :num].sort(-1).values
    if top.values.shape[1] > num:
        is_cut = top.values[:, num - 1] == top.values[:, num]
        for row in torch.nonzero(is_cut).flatten().tolist():
            ids[row] = _lowest_of_equals(values[row], float(top.values[row, num]), num)
    ordered, order = values.gather(-1, ids).sort(stable=True, dim=-1, descending=True)
    return ordered, ids.gather(-1, order)


def _lowest_of_equals(values: torch.Tensor, border: float, num: int) -> torch.Tensor:
    """The `num` largest of one row, ascending by id; several are equal to the last one."""
    above = torch.nonzero(values > border).flatten()
    equal = torch.nonzero(values == border).flatten()[: num - len(above)]
    return torch.cat([above, equal]).sort().values

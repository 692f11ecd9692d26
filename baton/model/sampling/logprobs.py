"""Log probabilities of tokens under the raw logits, in float32, for the rows that ask.

Raw: before bias, masks, penalties and temperature, as OpenAI and vLLM report them.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from baton.engine.protocol.batch import RowLogprobs


def row_logprobs(
    logits: torch.Tensor, tokens: NDArray[np.int64], num_tops: Sequence[int]
) -> list[RowLogprobs]:
    """Logprobs of each row's token and its `num_tops[row]` likeliest, equals by ascending id.

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

"""Logits to tokens on a CPU, lane by lane, so that no row pays for another's settings.

    forced      nothing is chosen: the token is given
    greedy      temperature 0: the largest logit, ties to the lowest id
    unlimited   temperature alone: an exponential race over the whole vocabulary
    limited     top-k, top-p or min-p: the race over the largest logits, CANDIDATES of them; rows
                whose limits reach beyond those are done again over more, at last over all

A race draws e ~ Exp(1) for each candidate and takes the largest p / e, which is an exact sample of
the distribution p (the Gumbel-max trick). Order of filters: temperature, top-k, top-p, min-p.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from baton.engine.protocol.batch import SampleRow
from baton.model.sampling.noise import keys_of, uniforms

CANDIDATES = 257  # enough for top-k 256, with one value beyond to see where equals end
# Sorting 152k logits takes 16 times as long as finding the 4097 largest.
WIDTHS = (CANDIDATES, 4097)

_Lane = Callable[[torch.Tensor, Sequence[SampleRow]], torch.Tensor]


def sample(logits: torch.Tensor, rows: Sequence[SampleRow]) -> NDArray[np.int64]:
    """One token for each row of float32 `logits` `[num_rows, vocab_size]`."""
    forced = [0 if row.forced_token is None else row.forced_token for row in rows]
    tokens = np.array(forced, dtype=np.int64)
    for lane, indexes in _lanes(rows, logits.shape[1]):
        chosen = [rows[index] for index in indexes]
        part = logits if len(indexes) == len(rows) else logits[indexes]
        tokens[indexes] = lane(part, chosen).cpu().numpy()
    return tokens


def _lanes(rows: Sequence[SampleRow], vocab_size: int) -> list[tuple[_Lane, list[int]]]:
    """The lanes that have rows, with the indexes of those."""
    greedy: list[int] = []
    unlimited: list[int] = []
    limited: list[int] = []
    for index, row in enumerate(rows):
        params = row.params
        if row.forced_token is not None:
            continue
        if params.temperature <= 0.0 or params.top_k == 1:
            greedy.append(index)
        elif params.top_p < 1.0 or 0 < params.top_k < vocab_size or params.min_p > 0.0:
            limited.append(index)
        else:
            unlimited.append(index)
    lanes: list[tuple[_Lane, list[int]]] = [
        (_greedy, greedy),
        (_unlimited, unlimited),
        (_limited, limited),
    ]
    return [(lane, indexes) for lane, indexes in lanes if indexes]


def _greedy(logits: torch.Tensor, rows: Sequence[SampleRow]) -> torch.Tensor:
    return logits.argmax(-1)  # the first of equals


def _unlimited(logits: torch.Tensor, rows: Sequence[SampleRow]) -> torch.Tensor:
    ids = torch.arange(logits.shape[1], device=logits.device)[None]
    return _race(_tempered(logits, rows), rows, ids).argmax(-1)


def _limited(logits: torch.Tensor, rows: Sequence[SampleRow]) -> torch.Tensor:
    vocab_size = logits.shape[1]
    first, *wider = [*(width for width in WIDTHS if width < vocab_size), vocab_size]
    tokens, is_enough = _limited_among(logits, rows, first)
    for width in wider:
        again = torch.nonzero(~is_enough).flatten()
        if len(again) == 0:
            break
        wide_rows = [rows[index] for index in again.tolist()]
        tokens[again], is_enough[again] = _limited_among(logits[again], wide_rows, width)
    return tokens


def _limited_among(
    logits: torch.Tensor, rows: Sequence[SampleRow], num_candidates: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens, and which of them did not need more than `num_candidates` candidates."""
    vocab_size = logits.shape[1]
    tempered = _tempered(logits, rows)
    values, ids = _largest(tempered, num_candidates)
    device = logits.device
    top_k = torch.tensor([row.params.top_k or vocab_size for row in rows], device=device)[:, None]
    # Off = infinite: rounded sums of shares may reach 1 before the last candidate.
    shares_wanted = [row.params.top_p if row.params.top_p < 1.0 else np.inf for row in rows]
    top_p = torch.tensor(shares_wanted, dtype=torch.float64, device=device)[:, None]
    # The largest value is 0, so min-p is a floor of the others; forbidden tokens are below any.
    floor = torch.tensor([row.params.min_p for row in rows], device=device).log()[:, None]
    floor = floor.clamp(min=torch.finfo(floor.dtype).min)
    border = values[:, -1:]
    # What top-p is a share of: the kept top-k, or everything when top-k is off or wider.
    is_cut = top_k <= num_candidates
    values = values.masked_fill(torch.arange(num_candidates, device=device) >= top_k, -torch.inf)
    everything = tempered.logsumexp(-1, keepdim=True).double()
    total = torch.where(is_cut, values.double().logsumexp(-1, keepdim=True), everything)
    shares = (values.double() - total).exp()
    reached = shares.cumsum(-1)
    is_kept = (reached - shares) < top_p
    is_kept &= values >= floor
    is_kept[:, 0] = True
    kept = values.masked_fill(~is_kept, -torch.inf)
    scores = _race(kept, rows, ids)
    tokens = ids.gather(-1, scores.argmax(-1, keepdim=True)).flatten()
    is_enough = is_cut | ((top_k >= vocab_size) & (reached[:, -1:] >= top_p)) | (border < floor)
    # Equals of the last candidate may be missing: it must not be among the kept ones.
    is_enough &= values.masked_fill(~is_kept, torch.inf).amin(-1, keepdim=True) > border
    return tokens, is_enough.flatten() | (num_candidates == vocab_size)


def _largest(values: torch.Tensor, num: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `num` largest of each row with their ids, descending, equals by ascending id."""
    if num == values.shape[1]:
        ordered, ids = values.sort(stable=True, dim=-1, descending=True)
        return ordered, ids
    ids = values.topk(num, sorted=False).indices.sort(-1).values
    ordered, order = values.gather(-1, ids).sort(stable=True, dim=-1, descending=True)
    return ordered, ids.gather(-1, order)


def _tempered(logits: torch.Tensor, rows: Sequence[SampleRow]) -> torch.Tensor:
    """Logits / temperature, shifted so that the largest is 0 and nothing overflows."""
    temperatures = torch.tensor([row.params.temperature for row in rows], device=logits.device)
    return (logits - logits.amax(-1, keepdim=True)) / temperatures[:, None]


def _race(values: torch.Tensor, rows: Sequence[SampleRow], token_ids: torch.Tensor) -> torch.Tensor:
    """Log of p / e for each candidate: the largest wins. `token_ids` is `[num_rows or 1, N]`."""
    noise = torch.from_numpy(uniforms(keys_of(rows), token_ids.numpy().astype(np.uint32)))
    return values - noise.neg_().log1p_().neg_().log_()

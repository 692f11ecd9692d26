"""Paged attention in plain torch, for CPUs: correct everywhere, no compiler needed.

One sequence after the other, so a result never depends on batch mates. A decode token of a plain
layer is one fused attention call over gathered blocks, GQA packed in the query dimension; all else
(chunks, softcap, sinks) is one matrix product per KV head, with float32 softmax. Measured reasons:
padding sequences to a common length costs 10x, and masks make the fused kernel 2.5x slower.
"""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from baton.engine.batch import StepBatch
from baton.engine.model.attention import AttentionForm
from baton.engine.model.kv_pool import KVPool

# Scores of one tile of queries and one KV head, in elements: bounds the memory of long chunks.
MAX_TILE_SCORES = 4 * 1024 * 1024


class _Slice(NamedTuple):
    """One sequence's part of the step."""

    start: int  # its query tokens are [start, end) of the flat batch
    end: int
    context_len: int  # tokens in the cache with this step's, which are the last of them
    table: torch.Tensor  # int64 [num_blocks]


class TorchAttention:
    """An AttentionBackend for tensors in main memory."""

    def __init__(self) -> None:
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._block_size = 0
        self._slices: list[_Slice] = []
        self._slot_blocks = self._slot_offsets = torch.empty(0, dtype=torch.int64)

    def bind(self, pool: KVPool) -> None:
        self._keys, self._values = pool.keys, pool.values
        self._block_size = pool.spec.block_size

    def begin_step(self, batch: StepBatch) -> None:
        starts = batch.query_starts
        tables = batch.block_tables.astype(np.int64)
        owners = np.repeat(np.arange(len(batch.context_lens)), np.diff(starts))
        blocks, offsets = np.divmod(batch.positions, self._block_size)
        self._slot_blocks = torch.from_numpy(tables[owners, blocks])
        self._slot_offsets = torch.from_numpy(offsets)
        bounds, lens = starts.tolist(), batch.context_lens.tolist()
        rows = torch.from_numpy(tables).unbind(0)
        self._slices = [
            _Slice(bounds[s], bounds[s + 1], length, rows[s][: -(-length // self._block_size)])
            for s, length in enumerate(lens)
        ]

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        form: AttentionForm,
    ) -> torch.Tensor:
        keys, values = self._keys[layer], self._values[layer]
        num_heads, num_tokens, _ = query.shape
        num_kv_heads = keys.shape[1]
        keys[self._slot_blocks, :, self._slot_offsets] = key.transpose(0, 1)
        values[self._slot_blocks, :, self._slot_offsets] = value.transpose(0, 1)
        # [num_kv_heads, heads per KV head, T, k_dim]
        grouped = query.view(num_kv_heads, num_heads // num_kv_heads, num_tokens, -1)
        output = query.new_empty(num_tokens, *grouped.shape[:2], values.shape[3])
        results = output.permute(1, 2, 0, 3)
        is_plain = form.softcap is None and form.sinks is None
        for part in self._slices:
            past_keys, past_values = self._gather(keys, values, part, form.sliding_window)
            queries = grouped[:, :, part.start : part.end]
            if is_plain and part.end - part.start == 1:
                result = _attend_one_token(queries, past_keys, past_values, form.scaling)
            else:
                result = _attend_chunk(queries, past_keys, past_values, form)
            results[:, :, part.start : part.end] = result
        return output.flatten(1, 2)

    def _gather(
        self, keys: torch.Tensor, values: torch.Tensor, part: _Slice, window: int | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values that any query of the part can see, `[num_kv_heads, L, dim]`.

        They end at the part's last token.
        """
        table, first = part.table, 0
        num_queries = part.end - part.start
        if window is not None:
            first = max(0, part.context_len - num_queries + 1 - window)
            skipped = first // self._block_size
            table, first = table[skipped:], first - skipped * self._block_size
        end = part.context_len - (len(part.table) - len(table)) * self._block_size
        return (
            keys.transpose(0, 1)[:, table].flatten(1, 2)[:, first:end],
            values.transpose(0, 1)[:, table].flatten(1, 2)[:, first:end],
        )


def _attend_one_token(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float
) -> torch.Tensor:
    """Queries `[num_kv_heads, group, 1, k_dim]` that see every key."""
    packed = queries[None, :, :, 0]
    result = F.scaled_dot_product_attention(packed, keys[None], values[None], scale=scaling)
    return result[0, :, :, None]


def _attend_chunk(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, form: AttentionForm
) -> torch.Tensor:
    """Queries `[num_kv_heads, group, N, k_dim]`, the last of which sees the last key."""
    num_kv_heads, group, num_queries, _ = queries.shape
    num_keys = keys.shape[1]
    output = queries.new_empty(num_kv_heads, group, num_queries, values.shape[-1])
    sinks = None if form.sinks is None else form.sinks.float().view(num_kv_heads, group, 1, 1)
    tile = max(1, MAX_TILE_SCORES // (group * num_keys))
    for start in range(0, num_queries, tile):
        end = min(start + tile, num_queries)
        hidden = _hidden_keys(start, end, num_queries, num_keys, form.sliding_window)
        for head in range(num_kv_heads):
            packed = queries[head, :, start:end].flatten(0, 1)
            scores = (packed @ keys[head].T).float().view(group, end - start, num_keys)
            scores *= form.scaling
            if form.softcap is not None:
                scores.div_(form.softcap).tanh_().mul_(form.softcap)
            if hidden is not None:
                scores.masked_fill_(hidden, -torch.inf)
            weights = _softmax(scores, None if sinks is None else sinks[head])
            output[head, :, start:end] = weights.to(values.dtype) @ values[head]
    return output


def _hidden_keys(
    start: int, end: int, num_queries: int, num_keys: int, window: int | None
) -> torch.Tensor | None:
    """True where a query of `[start, end)` must not see a key; None when all are seen."""
    if num_queries == 1:
        return None  # the gathered keys are the ones that it sees
    behind = num_keys - num_queries
    ahead = torch.arange(num_keys) - torch.arange(start + behind, end + behind)[:, None]
    hidden = ahead > 0
    return hidden if window is None else hidden | (ahead <= -window)


def _softmax(scores: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """Softmax over the last dimension, with one more logit that takes weight but has no value."""
    if sinks is None:
        return scores.softmax(-1)
    extended = torch.cat([scores, sinks.expand(*scores.shape[:-1], 1)], -1)
    return extended.softmax(-1)[..., :-1]

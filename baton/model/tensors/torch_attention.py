"""Paged attention in plain torch, for CPUs: correct everywhere, no compiler needed.

Each sequence is attended alone, so a result never depends on batch mates. A decode token of a plain
layer is one fused attention call, GQA packed in the query dimension; all else (chunks, softcap,
sinks) is one matrix product per KV head, with float32 softmax. Measured reasons: padding sequences
to a common length costs up to 10x, and masks make the fused kernel 2.5x slower. Blocks of several
short sequences are gathered by one call, up to MAX_GATHER_BYTES.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from baton.engine.protocol.batch import StepBatch
from baton.model.tensors.attention import AttentionForm
from baton.model.tensors.kv_pool import KVPool

# Scores of one tile of queries and one KV head, in elements: bounds the memory of long chunks.
MAX_TILE_SCORES = 4 * 1024 * 1024
MAX_GATHER_BYTES = 4 * 1024 * 1024


class _Slice(NamedTuple):
    """One sequence's part of the step."""

    start: int  # its query tokens are [start, end) of the flat batch
    end: int
    context_len: int  # tokens in the cache with this step's, which are the last of them
    table: NDArray[np.int64]  # [num_blocks]


@dataclass(frozen=True, slots=True)
class _Group:
    """Sequences whose blocks are gathered together, all of decode tokens or one chunk."""

    query_rows: torch.Tensor  # int64, flat tokens of all of them
    num_queries: int  # of each
    table: torch.Tensor  # int64, the blocks that their queries see
    # What the gathered tokens are: for each sequence some before, some seen, some after.
    sizes: list[int]


class TorchAttention:
    """An AttentionBackend for tensors in main memory."""

    def __init__(self) -> None:
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._block_size = 0
        self._max_group_blocks = 1
        self._slices: list[_Slice] = []
        self._slot_blocks = self._slot_offsets = torch.empty(0, dtype=torch.int64)
        # By sliding window: layers with the same one share their groups.
        self._groups: dict[int | None, list[_Group]] = {}
        self._key_gatherer, self._value_gatherer = _Gatherer(), _Gatherer()

    def bind(self, pool: KVPool) -> None:
        self._keys, self._values = pool.keys, pool.values
        self._block_size = pool.spec.block_size
        page_bytes = max(layer.page_bytes(self._block_size) for layer in pool.spec.layers)
        self._max_group_blocks = MAX_GATHER_BYTES // page_bytes

    def begin_step(self, batch: StepBatch) -> None:
        starts = batch.query_starts
        tables = batch.block_tables.astype(np.int64)
        owners = np.repeat(np.arange(len(batch.context_lens)), np.diff(starts))
        blocks, offsets = np.divmod(batch.positions, self._block_size)
        self._slot_blocks = torch.from_numpy(tables[owners, blocks])
        self._slot_offsets = torch.from_numpy(offsets)
        bounds = starts.tolist()
        self._slices = [
            _Slice(bounds[s], bounds[s + 1], length, tables[s, : -(-length // self._block_size)])
            for s, length in enumerate(batch.context_lens.tolist())
        ]
        self._groups = {}

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        form: AttentionForm,
    ) -> torch.Tensor:
        keys, values = self._keys[layer], self._values[layer]
        num_kv_heads = keys.shape[1]
        keys[self._slot_blocks, :, self._slot_offsets] = key.transpose(0, 1)
        values[self._slot_blocks, :, self._slot_offsets] = value.transpose(0, 1)
        tokens = query.transpose(0, 1)
        grouped = tokens.view(len(tokens), num_kv_heads, -1, tokens.shape[2])
        output = query.new_empty(*grouped.shape[:3], values.shape[3])
        for group in self._groups_of(form.sliding_window):
            queries = torch.split(grouped[group.query_rows], group.num_queries)
            seen_keys = self._key_gatherer.gather(keys, group)
            seen_values = self._value_gatherer.gather(values, group)
            parts = zip(queries, seen_keys, seen_values, strict=True)
            results = [_attend_sequence(*part, form) for part in parts]
            output[group.query_rows] = torch.cat(results)
        return output.flatten(1, 2)

    def _groups_of(self, window: int | None) -> list[_Group]:
        if window not in self._groups:
            self._groups[window] = list(self._build_groups(window))
        return self._groups[window]

    def _build_groups(self, window: int | None) -> Iterator[_Group]:
        """Decode tokens together up to the limit, each chunk for itself."""
        members: list[_Slice] = []
        num_blocks = 0
        for part in self._slices:
            if part.end - part.start > 1:
                yield self._group([part], window)
                continue
            num_blocks += len(part.table)
            if members and num_blocks > self._max_group_blocks:
                yield self._group(members, window)
                members, num_blocks = [], len(part.table)
            members.append(part)
        if members:
            yield self._group(members, window)

    def _group(self, parts: list[_Slice], window: int | None) -> _Group:
        size = self._block_size
        num_queries = parts[0].end - parts[0].start
        tables, sizes = [], []
        for part in parts:
            # The first position that the first query sees.
            first = 0 if window is None else max(0, part.context_len - num_queries + 1 - window)
            skipped = first // size
            tables.append(part.table[skipped:])
            before = first - skipped * size
            sizes += [before, part.context_len - first, -part.context_len % size]
        rows = torch.cat([torch.arange(part.start, part.end) for part in parts])
        return _Group(rows, num_queries, torch.from_numpy(np.concatenate(tables)), sizes)


class _Gatherer:
    """Copies blocks out of the pool into memory that it reuses, head by head.

    `index_select` of whole rows is 2-5 times faster than indexing, and never copies its source
    as long as it selects along the first dimension.
    """

    def __init__(self) -> None:
        self._buffer = torch.empty(0)

    def gather(self, pages: torch.Tensor, group: _Group) -> tuple[torch.Tensor, ...]:
        """Gather what each sequence of the group sees, `[num_kv_heads, num_seen, dim]`.

        Valid until the next call. `pages` is `[num_blocks, num_kv_heads, block_size, dim]`.
        """
        num_pool_blocks, num_heads, block_size, dim = pages.shape
        shape = (num_heads, len(group.table), block_size * dim)
        num_values = shape[0] * shape[1] * shape[2]
        if self._buffer.numel() < num_values or self._buffer.dtype != pages.dtype:
            self._buffer = torch.empty(num_values, dtype=pages.dtype)
        gathered = self._buffer[:num_values].view(shape)
        for head, target in enumerate(gathered.unbind()):
            source = pages[:, head].view(num_pool_blocks, -1)
            torch.index_select(source, 0, group.table, out=target)
        tokens = gathered.view(num_heads, -1, dim)
        return tokens.split_with_sizes(group.sizes, 1)[1::3]


def _attend_sequence(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, form: AttentionForm
) -> torch.Tensor:
    """Queries `[N, num_kv_heads, group, k_dim]`, the last of which sees the last key."""
    if len(queries) == 1 and form.softcap is None and form.sinks is None:
        return F.scaled_dot_product_attention(queries, keys[None], values[None], scale=form.scaling)
    return _attend_chunk(queries.permute(1, 2, 0, 3), keys, values, form).permute(2, 0, 1, 3)


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

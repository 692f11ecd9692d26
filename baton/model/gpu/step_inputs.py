"""A step's inputs on the device: all of a StepBatch in one buffer of int32, moved by one copy.

The tensors here are views of that buffer and never move, so that a CUDA graph that was captured
over them reads the next step's values. Block tables come last and without padding, so that only
what is used is copied. A batch is padded to a graph's size with tokens that store nothing (slot -1)
and sequences that see nothing (context 0) and are never sampled from. Knows no kernels.

The cached tokens of the sequences are cut into segments, for attention to read at the same time:
as equal ones as fill a GPU, so that one long context keeps no step waiting. There are as many as
sequences and a fixed number more, since a captured graph launches a fixed number of programs.
"""

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from baton.engine.protocol.batch import StepBatch

NO_SLOT = -1


class Padding(NamedTuple):
    """Tokens and sequences that are added to a step; a sequence has one of the tokens, or none."""

    num_tokens: int
    num_seqs: int


NO_PADDING = Padding(0, 0)


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The largest step: capacity of the buffer, not a schedule."""

    max_tokens: int
    max_seqs: int
    max_blocks_per_seq: int
    # Segments beyond one for each sequence, and what their lengths are multiples of.
    more_segments: int = 128
    segment_unit: int = 64

    @property
    def max_segments(self) -> int:
        return self.max_seqs + self.more_segments


class StepInputs:
    """Filled by `fill`, read by the model and the attention backend until the next `fill`.

    One buffer in several views (host and device, whole and by section), and the sizes of the last
    fill, which the launch of a kernel reads: together they are what a captured graph depends on.
    """

    def __init__(self, limits: StepLimits, block_size: int, device: torch.device) -> None:
        self.block_size = block_size
        self.limits = limits
        # Of the last fill: sequences and tokens with padding, and the range of query counts.
        self.num_seqs = self.num_tokens = self.num_segments = 0
        self.min_queries = self.max_queries = 1
        tokens, seqs = limits.max_tokens, limits.max_seqs
        sizes = {
            "token_ids": tokens,
            "positions": tokens,
            "slots": tokens,
            "logit_rows": tokens + seqs,
            "tokens_from": seqs,
            "query_starts": seqs + 1,
            "context_lens": seqs,
            "table_starts": seqs + 1,
            "segment_starts": seqs + 1,
            "segment_seqs": limits.max_segments,
            "segment_keys": 1,
        }
        starts = list(accumulate((_aligned(size) for size in sizes.values()), initial=0))
        self._tables_start = starts[-1]
        num_values = self._tables_start + seqs * limits.max_blocks_per_seq
        is_gpu = device.type == "cuda"
        self._host = torch.zeros(num_values, dtype=torch.int32, pin_memory=is_gpu)
        self._device = torch.zeros(num_values, dtype=torch.int32, device=device)
        self._copied = torch.cuda.Event() if is_gpu else None  # type: ignore[no-untyped-call]
        places = dict(zip([*sizes, "tables"], starts, strict=True))
        self._arrays = {name: self._host.numpy()[start:] for name, start in places.items()}
        self._tensors = {name: self._device[start:] for name, start in places.items()}

    def __getitem__(self, name: str) -> torch.Tensor:
        """The buffer from that section's start on, int32; only what `fill` put there is valid."""
        return self._tensors[name]

    def fill(
        self, batch: StepBatch, logit_rows: NDArray[np.int64], padding: Padding = NO_PADDING
    ) -> None:
        """Pack `batch` and start the copy. `logit_rows` are flat tokens whose logits are wanted."""
        if self._copied is not None:
            self._copied.synchronize()  # the last step's copy may still be reading
        num_seqs, num_tokens = len(batch.context_lens), len(batch.token_ids)
        counts = np.diff(batch.query_starts)
        self.num_seqs = num_seqs + padding.num_seqs
        self.num_tokens = num_tokens + padding.num_tokens
        self.min_queries = 1 if padding.num_seqs else int(counts.min())
        self.max_queries = int(counts.max(initial=1))
        self._put("token_ids", batch.token_ids, padding.num_tokens, 0)
        self._put("positions", batch.positions, padding.num_tokens, 0)
        self._put("slots", self._slots(batch, counts), padding.num_tokens, NO_SLOT)
        self._put("logit_rows", logit_rows, max(0, self.num_tokens - len(logit_rows)), 0)
        if batch.tokens_from is not None:
            self._put("tokens_from", batch.tokens_from, 0, 0)
        self._put("query_starts", batch.query_starts, 0, 0)
        ends = self._arrays["query_starts"][num_seqs + 1 : self.num_seqs + 1]
        ends[:] = np.minimum(num_tokens + 1 + np.arange(padding.num_seqs), self.num_tokens)
        self._put("context_lens", batch.context_lens, padding.num_seqs, 0)
        self._fill_segments()
        num_used = self._fill_tables(batch, padding.num_seqs)
        self._device[:num_used].copy_(self._host[:num_used], non_blocking=True)
        if self._copied is not None:
            self._copied.record()

    def put_tokens(self, earlier: torch.Tensor, num_tokens: int) -> None:
        """Take the first tokens that are not known here from those of the step before."""
        rows, own = self["tokens_from"][:num_tokens], self["token_ids"][:num_tokens]
        own.copy_(torch.where(rows < 0, own, earlier[rows.clamp(min=0).long()].int()))

    def fill_padding(self, padding: Padding) -> None:
        """A step of nothing but padding: tokens that store and see nothing."""
        nothing, none = np.empty(0, np.int64), np.empty(0, np.int32)
        tables = np.empty((0, 0), np.int32)
        batch = StepBatch(0, nothing, nothing, np.zeros(1, np.int32), none, tables, [], [])
        self.fill(batch, nothing, padding)

    def _fill_segments(self) -> None:
        """The segments of each sequence, and the owner of each: -1 for those without one."""
        limits, context_lens = self.limits, self._arrays["context_lens"][: self.num_seqs]
        share = int(context_lens.sum(dtype=np.int64)) / limits.more_segments
        num_keys = max(1, math.ceil(share / limits.segment_unit)) * limits.segment_unit
        counts = np.maximum(-(-context_lens // num_keys), 1)
        starts, owners = self._arrays["segment_starts"], self._arrays["segment_seqs"]
        starts[0] = 0
        np.cumsum(counts, out=starts[1 : self.num_seqs + 1])
        num_used = int(starts[self.num_seqs])
        self.num_segments = self.num_seqs + limits.more_segments
        owners[:num_used] = np.repeat(np.arange(self.num_seqs), counts)
        owners[num_used : self.num_segments] = -1
        self._arrays["segment_keys"][0] = num_keys

    def _put(self, name: str, values: NDArray[np.generic], num_padded: int, padding: int) -> None:
        target = self._arrays[name]
        end = len(values)
        target[:end] = values
        target[end : end + num_padded] = padding

    def _slots(self, batch: StepBatch, counts: NDArray[np.int32]) -> NDArray[np.int64]:
        """The slot of each token's K and V: block * block_size + offset."""
        owners = np.repeat(np.arange(len(counts)), counts)
        blocks, offsets = np.divmod(batch.positions, self.block_size)
        return batch.block_tables[owners, blocks].astype(np.int64) * self.block_size + offsets

    def _fill_tables(self, batch: StepBatch, num_padded: int) -> int:
        """Block tables one after the other; returns how much of the buffer is used."""
        num_blocks = -(-batch.context_lens // self.block_size)
        is_used = np.arange(batch.block_tables.shape[1]) < num_blocks[:, None]
        tables = batch.block_tables[is_used]
        starts = self._arrays["table_starts"]
        starts[0] = 0
        np.cumsum(num_blocks, out=starts[1 : len(num_blocks) + 1])
        starts[len(num_blocks) + 1 : len(num_blocks) + 1 + num_padded] = len(tables)
        self._arrays["tables"][: len(tables)] = tables
        return self._tables_start + len(tables)


def _aligned(num_values: int) -> int:
    """Sections begin at multiples of 16 bytes, which lets kernels load whole vectors."""
    return -(-num_values // 4) * 4

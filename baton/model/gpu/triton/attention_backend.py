"""Paged attention on a GPU with the project's own Triton kernels: the backend that is always there.

Sequences with few new tokens (decode, short drafts) are split over their keys into the segments of
the step's inputs; longer ones (prefill chunks) go in tiles of queries. Both launches cover the
whole batch and skip what is the other's, so nothing is sorted or counted per kind, and a launch
over padded inputs can be captured in a CUDA graph. Runs in Triton's interpreter without a GPU.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from baton.engine.protocol.batch import StepBatch
from baton.model.gpu.step_inputs import StepInputs
from baton.model.gpu.triton.attention_kernels import (
    join_segments_kernel,
    paged_attention_kernel,
    store_kv_kernel,
)
from baton.model.tensors.attention import AttentionForm
from baton.model.tensors.kv_pool import KVPool

# Keys and values that a program has in flight; a multiprocessor has 227 KiB on Hopper.
MAX_KEYS_BYTES = 128 * 1024
# Rows of queries and results that a program has in registers: more of them spill (seen compiling
# for sm_90), in float32 much earlier, since that is not computed by the matrix units.
MAX_ROWS_VALUES = 128 * 256
MAX_ROWS_VALUES_FLOAT32 = 16 * 256
MAX_KEYS_FLOAT32 = 16
JOINED_SEGMENTS = 16  # partial results that are loaded together
# The inputs that the attention kernel reads.
_SECTIONS = (
    "query_starts",
    "context_lens",
    "table_starts",
    "tables",
    "segment_starts",
    "segment_seqs",
    "segment_keys",
)


@dataclass(frozen=True, slots=True)
class TileShape:
    """The tiles of one launch; rows and keys are powers of two from 16 on."""

    num_rows: int  # of a tile, at least; a row is one query of one head
    num_keys: int  # of a tile, at most
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class Tuning:
    """Options that change speed and not results (beyond the order of sums)."""

    short: TileShape = TileShape(num_rows=16, num_keys=64, num_warps=2, num_stages=3)
    long: TileShape = TileShape(num_rows=128, num_keys=64, num_warps=8, num_stages=3)
    max_short_queries: int = 8  # a sequence with more new tokens is not split


class TritonAttention:
    """An AttentionBackend over `inputs`, which someone else fills before each step."""

    def __init__(self, inputs: StepInputs, tuning: Tuning | None = None) -> None:
        self._inputs = inputs
        self._tuning = tuning or Tuning()
        self._pool: KVPool | None = None
        # Partial results of split sequences, for all layers in turn. Sized for the largest batch by
        # the first step: a captured graph goes on using this memory.
        self._partials = self._stats = torch.empty(0)

    def bind(self, pool: KVPool) -> None:
        self._pool = pool

    def begin_step(self, batch: StepBatch) -> None:
        """Nothing to do: all that the layers share is in the inputs."""

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        form: AttentionForm,
    ) -> torch.Tensor:
        assert self._pool is not None, "bind comes first"
        _store(key, value, self._pool, layer, self._inputs)
        return self.attend_stored(layer, query, form)

    def attend_stored(self, layer: int, query: torch.Tensor, form: AttentionForm) -> torch.Tensor:
        """As `attend`, where keys and values of the new tokens are in the pool already."""
        assert self._pool is not None, "bind comes first"
        call = _Call(_whole_rows(query), self._pool, layer, form, self._inputs)
        short, long = self._tuning.short, self._tuning.long
        num_short = min(self._tuning.max_short_queries, call.num_rows(short) // call.group)
        if self._inputs.min_queries <= num_short:
            self._attend_split(call, num_short)
        if self._inputs.max_queries > num_short:
            tile_queries = call.num_rows(long) // call.group
            num_tiles = self._inputs.num_tokens // tile_queries + self._inputs.num_seqs
            call.attend(long, num_tiles, num_short)
        return call.output

    def _attend_split(self, call: "_Call", num_short: int) -> None:
        """Sequences of up to `num_short` queries: each is one tile, split over its keys."""
        inputs = self._inputs
        num_rows = inputs.limits.max_segments * call.query.shape[0] * num_short
        v_pad = _padded(call.output.shape[2])
        if self._partials.numel() < num_rows * v_pad:
            self._partials = torch.empty(num_rows * v_pad, device=call.output.device)
        if self._stats.numel() < num_rows * 2:
            self._stats = torch.empty(num_rows * 2, device=call.output.device)
        split = _Split(self._partials, self._stats)
        call.attend(self._tuning.short, inputs.num_segments, num_short, split)
        num_queries = min(num_short, inputs.max_queries)
        join_segments_kernel[(call.num_kv_heads, num_queries * call.group, inputs.num_seqs)](
            call.output,
            *split,
            inputs["query_starts"],
            inputs["segment_starts"],
            call.output.stride(0),
            GROUP=call.group,
            V_DIM=call.output.shape[2],
            V_PAD=v_pad,
            SHORT_QUERIES=num_short,
            CHUNK=JOINED_SEGMENTS,
        )


class _Split(NamedTuple):
    partials: torch.Tensor
    stats: torch.Tensor


class _Call:
    """One layer's attention in one step: what its launches share."""

    def __init__(
        self, query: torch.Tensor, pool: KVPool, layer: int, form: AttentionForm, inputs: StepInputs
    ) -> None:
        self.query, self.form, self.inputs = query, form, inputs
        self.keys, self.values = pool.keys[layer], pool.values[layer]
        self.num_kv_heads = self.keys.shape[1]
        self.group = query.shape[0] // self.num_kv_heads
        self._is_float32 = query.dtype == torch.float32
        self.output = query.new_empty(query.shape[1], query.shape[0], self.values.shape[3])
        self._dims = {
            "BLOCK_SIZE": inputs.block_size,
            "K_DIM": query.shape[2],
            "V_DIM": self.output.shape[2],
            "K_PAD": _padded(query.shape[2]),
            "V_PAD": _padded(self.output.shape[2]),
        }

    def num_rows(self, shape: TileShape) -> int:
        """Rows of a tile: so many as registers hold, and one query of the whole group fits."""
        limit = MAX_ROWS_VALUES_FLOAT32 if self._is_float32 else MAX_ROWS_VALUES
        most = limit // (self._dims["K_PAD"] + self._dims["V_PAD"])
        num_rows = min(shape.num_rows, 1 << (most.bit_length() - 1))
        return max(16, num_rows, _power_of_2(self.group))

    def attend(
        self, shape: TileShape, num_programs: int, num_short: int, split: _Split | None = None
    ) -> None:
        """Attend to the short sequences when they are split, else to the long ones."""
        form, inputs = self.form, self.inputs
        paged_attention_kernel[(self.num_kv_heads, num_programs)](
            self.query,
            self.keys,
            self.values,
            self.output if form.sinks is None else form.sinks,
            self.output,
            self.output if split is None else split.partials,
            self.output if split is None else split.stats,
            *map(inputs.__getitem__, _SECTIONS),
            inputs.num_seqs,
            *self.query.stride()[:2],
            self.output.stride(0),
            self.keys.stride(0),
            form.scaling,
            form.softcap or 1.0,
            form.sliding_window or 0,
            **self._dims,
            GROUP=self.group,
            TILE_ROWS=self.num_rows(shape),
            TILE_KEYS=self._tile_keys(shape),
            SHORT_QUERIES=num_short,
            IS_SPLIT=split is not None,
            HAS_SINKS=form.sinks is not None,
            HAS_SOFTCAP=form.softcap is not None,
            HAS_WINDOW=form.sliding_window is not None,
            PRECISION="ieee",  # of float32 alone; narrower types have one precision
            num_warps=shape.num_warps,
            num_stages=shape.num_stages,
        )

    def _tile_keys(self, shape: TileShape) -> int:
        """Keys of a tile, so that what is loaded ahead fits on a multiprocessor."""
        key_bytes = (self._dims["K_PAD"] + self._dims["V_PAD"]) * self.keys.element_size()
        num_keys = min(shape.num_keys, MAX_KEYS_FLOAT32) if self._is_float32 else shape.num_keys
        while num_keys > 16 and num_keys * key_bytes * shape.num_stages > MAX_KEYS_BYTES:
            num_keys //= 2
        return num_keys


def _store(
    key: torch.Tensor, value: torch.Tensor, pool: KVPool, layer: int, inputs: StepInputs
) -> None:
    """Put the new K and V of all tokens into their slots."""
    key, value = _whole_rows(key), _whole_rows(value)
    store_kv_kernel[(key.shape[1], key.shape[0])](
        key,
        value,
        inputs["slots"],
        pool.keys[layer],
        pool.values[layer],
        *key.stride()[:2],
        *value.stride()[:2],
        pool.keys[layer].stride(0),
        BLOCK_SIZE=inputs.block_size,
        K_DIM=key.shape[2],
        V_DIM=value.shape[2],
        K_PAD=_padded(key.shape[2]),
        V_PAD=_padded(value.shape[2]),
        num_warps=1,
    )


def _whole_rows(values: torch.Tensor) -> torch.Tensor:
    """The same tensor with its last dimension dense, which the kernels rely on."""
    return values if values.stride(-1) == 1 else values.contiguous()


def _padded(dim: int) -> int:
    """A head dimension as tiles have it: the matrix units want powers of two from 16 on."""
    return max(16, _power_of_2(dim))


def _power_of_2(number: int) -> int:
    """The smallest one that is not below `number`."""
    return 1 << (number - 1).bit_length()

"""The attention kernels alone on a GPU: whether they are right, how near to the machine's rates.

Right: against attention by its definition in float32, over the shapes and forms that models have.
Decode reads the cache once, so its limit is memory; prefill multiplies, so its limit is products.
Beside both: torch's fused attention over dense tensors, which have no blocks to be found.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from baton.engine.protocol.batch import StepBatch
from baton.model.gpu.step_inputs import StepInputs, StepLimits
from baton.model.gpu.triton.attention_backend import TileShape, TritonAttention, Tuning
from baton.model.tensors.attention import AttentionForm
from baton.model.tensors.kv_pool import KVPool
from baton.wire.kv_spec import KVSpec
from bench.gpu.gpu_machine import Rates, Stopwatch
from bench.gpu.gpu_report import Table

BLOCK_SIZE = 16
# Of the norm of the right result. Half precision rounds weights and results.
MAX_ERROR = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
_MAX_MEMORY_SHARE = 0.5  # larger caches are left out
_WORKSPACE_BYTES = 128 * 2**20
# Keys of a tile, stages, warps.
_TILES = ((32, 3, 4), (64, 2, 4), (64, 4, 4), (128, 2, 4), (64, 3, 2), (64, 2, 2))
# Rows and keys of a tile, stages, warps.
_LONG_TILES = (
    (128, 64, 3, 8),
    (128, 64, 2, 8),
    (128, 64, 4, 8),
    (128, 128, 2, 8),
    (128, 64, 3, 4),
    (64, 64, 3, 4),
    (64, 128, 2, 4),
)


class Heads(NamedTuple):
    """The shape of one layer."""

    num: int
    num_kv: int
    dim: int


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """The measurements; the defaults are for a large GPU."""

    heads: Heads = field(default_factory=lambda: Heads(32, 8, 128))
    dtype: torch.dtype = torch.bfloat16
    groups: tuple[int, ...] = (1, 2, 4, 8)
    dims: tuple[int, ...] = (64, 128, 256)
    decode_batches: tuple[int, ...] = (1, 8, 32, 128)
    decode_contexts: tuple[int, ...] = (1200, 8192, 32768)
    prefill_tokens: tuple[int, ...] = (512, 2048, 8192)
    # (already in the cache, new): decode, chunks with and without a past.
    proof_counts: tuple[tuple[int, int], ...] = ((700, 1), (300, 17), (0, 512), (130, 4), (0, 1))


class Cut(NamedTuple):
    """A way to cut the work."""

    more_segments: int = 128
    unit: int = 64
    tuning: Tuning = Tuning()


class Layer:
    """A cache of one layer full of random keys and values, in scattered blocks, with a backend."""

    def __init__(
        self,
        heads: Heads,
        counts: list[tuple[int, int]],
        dtype: torch.dtype,
        device: torch.device,
        cut: Cut | None = None,
    ) -> None:
        """`counts`: (tokens in the cache before, new ones, which are in it too) by sequence."""
        self.heads, self.counts = heads, counts
        num_blocks = [-(-(old + new) // BLOCK_SIZE) for old, new in counts]
        num_new = sum(new for _, new in counts)
        name = str(dtype).removeprefix("torch.")
        spec = KVSpec.of_layers(BLOCK_SIZE, [(heads.num_kv, heads.dim, heads.dim, name)])
        rows = torch.empty(sum(num_blocks) * spec.row_bytes, dtype=torch.uint8, device=device)
        rows.view(dtype).normal_()
        self.pool = KVPool(spec, rows)
        self.tables = _scattered(num_blocks)
        cut = cut or Cut()
        limits = StepLimits(num_new, len(counts), max(num_blocks), cut.more_segments, cut.unit)
        self.inputs = StepInputs(limits, BLOCK_SIZE, device)
        self.inputs.fill(self._batch(), np.empty(0, np.int64))
        self.backend = TritonAttention(self.inputs, cut.tuning)
        self.backend.bind(self.pool)
        self.query = torch.randn(num_new, heads.num, heads.dim, device=device).to(dtype)

    def attend(self, form: AttentionForm) -> torch.Tensor:
        return self.backend.attend_stored(0, self.query.transpose(0, 1), form)

    def expected(self, form: AttentionForm) -> torch.Tensor:
        """The same by definition in float32, sequence by sequence."""
        starts = np.cumsum([0] + [new for _, new in self.counts])
        parts = [
            _expected(self.query[starts[s] : starts[s + 1]], *self.dense(s), form)
            for s in range(len(self.counts))
        ]
        return torch.cat(parts)

    def dense(self, seq: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one sequence, `[num_kv_heads, num_tokens, dim]`."""
        num_tokens = sum(self.counts[seq])
        num_blocks = -(-num_tokens // BLOCK_SIZE)
        table = torch.from_numpy(self.tables[seq, :num_blocks].astype(np.int64))
        keys, values = (
            pages[table.to(pages.device)].transpose(0, 1).flatten(1, 2)[:, :num_tokens]
            for pages in (self.pool.keys[0], self.pool.values[0])
        )
        return keys, values

    def _batch(self) -> StepBatch:
        news = [new for _, new in self.counts]
        return StepBatch(
            step=0,
            token_ids=np.zeros(sum(news), np.int64),
            positions=np.concatenate([np.arange(old, old + new) for old, new in self.counts]),
            query_starts=np.cumsum([0, *news], dtype=np.int32),
            context_lens=np.array([old + new for old, new in self.counts], np.int32),
            block_tables=self.tables,
            seq_ids=[],
            sample_rows=[],
        )


def _scattered(num_blocks: list[int]) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    """Tables over all blocks in random order, padded with -1."""
    order = np.random.default_rng(0).permutation(sum(num_blocks)).astype(np.int32)
    tables = np.full((len(num_blocks), max(num_blocks)), -1, np.int32)
    start = 0
    for row, num in zip(tables, num_blocks, strict=True):
        row[:num] = order[start : start + num]
        start += num
    return tables


def _expected(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, form: AttentionForm
) -> torch.Tensor:
    """Query `[num_new, num_heads, dim]`, whose last one sees the last key."""
    group = query.shape[1] // keys.shape[0]
    keys, values = (part.float().repeat_interleave(group, 0) for part in (keys, values))
    scores = query.float().transpose(0, 1) @ keys.transpose(1, 2) * form.scaling
    if form.softcap is not None:
        scores = form.softcap * torch.tanh(scores / form.softcap)
    num_new, num_keys = scores.shape[1:]
    positions = torch.arange(num_keys, device=query.device)
    ahead = positions - positions[num_keys - num_new :, None]
    hidden = ahead > 0
    if form.sliding_window is not None:
        hidden |= ahead <= -form.sliding_window
    scores = scores.masked_fill(hidden, -torch.inf)
    if form.sinks is not None:
        sinks = form.sinks.float().view(-1, 1, 1).expand(-1, num_new, 1)
        scores = torch.cat([scores, sinks], -1)
    return (scores.softmax(-1)[..., :num_keys] @ values).transpose(0, 1)


def _forms(heads: Heads, device: torch.device) -> dict[str, AttentionForm]:
    scaling = heads.dim**-0.5
    sinks = torch.randn(heads.num, device=device)
    return {
        "plain": AttentionForm(scaling),
        "window": AttentionForm(scaling, sliding_window=100),
        "softcap": AttentionForm(scaling, softcap=5.0),
        "sinks": AttentionForm(scaling, sinks=sinks),
        "all": AttentionForm(scaling, 100, 5.0, sinks),
    }


@torch.inference_mode()
def prove_attention(watch: Stopwatch, plan: AttentionPlan) -> Table:
    """Check that results are right: every group and dim with and without all extras."""
    columns = ["query heads / KV head", "dim", "dtype", "form", "relative error"]
    table = Table("attention_proof", "Attention against its definition in float32", columns)
    cases = [(group, dim, plan.dtype, "all") for group in plan.groups for dim in plan.dims]
    cases += [(group, dim, plan.dtype, "plain") for group in plan.groups for dim in plan.dims]
    cases += [(plan.groups[-1], 128, plan.dtype, name) for name in ("window", "softcap", "sinks")]
    cases += [(plan.groups[-1], 64, torch.float32, "all"), (1, 64, torch.float16, "all")]
    for group, dim, dtype, name in cases:
        heads = Heads(2 * group, 2, dim)
        layer = Layer(heads, list(plan.proof_counts), dtype, watch.device)
        form = _forms(heads, watch.device)[name]
        right = layer.expected(form)
        error = float((layer.attend(form).float() - right).norm() / right.norm())
        table.rows.append([group, dim, str(dtype).removeprefix("torch."), name, error])
        if not error < MAX_ERROR[dtype]:
            table.errors.append(f"{table.rows[-1]} exceeds {MAX_ERROR[dtype]}")
    return table


@torch.inference_mode()
def measure_decode(watch: Stopwatch, plan: AttentionPlan, rates: Rates) -> Table:
    """Bytes of the cache that a decode step of one layer reads per second."""
    columns = ["batch", "context", "us", "GB/s", "of read rate", "torch dense us", "ratio"]
    table = Table("attention_decode", _title("Decode attention, one layer", plan), columns)
    form = AttentionForm(plan.heads.dim**-0.5)
    for batch, context in _fitting(watch, plan):
        layer = Layer(plan.heads, [(context - 1, 1)] * batch, plan.dtype, watch.device)
        seconds = watch.seconds(partial(layer.attend, form))
        rate = _cache_bytes(plan, batch * context) / seconds
        dense_s = _dense_decode_seconds(watch, layer, form)
        share = rate / rates.read_bytes_per_s
        us, dense_us = seconds * 1e6, dense_s * 1e6
        table.rows.append([batch, context, us, rate / 1e9, share, dense_us, dense_s / seconds])
    return table


@torch.inference_mode()
def measure_flashinfer(watch: Stopwatch, plan: AttentionPlan) -> Table:
    """The same by FlashInfer over the same cache. Raises ImportError where it is not installed."""
    import flashinfer

    columns = ["batch", "context", "us", "ours us", "ratio", "relative difference"]
    table = Table("flashinfer", _title("FlashInfer's decode attention", plan), columns)
    form = AttentionForm(plan.heads.dim**-0.5)
    workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=watch.device)
    for batch, context in _fitting(watch, plan):
        layer = Layer(plan.heads, [(context - 1, 1)] * batch, plan.dtype, watch.device)
        num_blocks = -(-context // BLOCK_SIZE)
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            workspace, "HND", use_tensor_cores=True
        )
        wrapper.plan(
            layer.inputs["table_starts"][: batch + 1],
            layer.inputs["tables"][: batch * num_blocks],
            torch.full((batch,), context - (num_blocks - 1) * BLOCK_SIZE, dtype=torch.int32),
            *plan.heads,
            BLOCK_SIZE,
            q_data_type=plan.dtype,
            sm_scale=form.scaling,
        )
        run = partial(wrapper.run, layer.query, (layer.pool.keys[0], layer.pool.values[0]))
        theirs, ours = run().float(), layer.attend(form).float()
        seconds, our_s = watch.seconds(run), watch.seconds(partial(layer.attend, form))
        difference = float((theirs - ours).norm() / ours.norm())
        us, our_us = seconds * 1e6, our_s * 1e6
        table.rows.append([batch, context, us, our_us, our_s / seconds, difference])
    return table


@torch.inference_mode()
def sweep_decode(watch: Stopwatch, plan: AttentionPlan) -> Table:
    """The same with other ways to cut the work: which defaults there should be."""
    columns = ["more segments", "unit", "keys of a tile", "stages", "warps"]
    shapes = [(plan.decode_batches[0], plan.decode_contexts[0])]
    shapes += [(plan.decode_batches[0], plan.decode_contexts[-1])]
    shapes += [(plan.decode_batches[-2], plan.decode_contexts[0])]
    shapes += [(plan.decode_batches[-1], plan.decode_contexts[0])]
    columns += [f"us at batch {batch}, context {context}" for batch, context in shapes]
    table = Table("attention_sweep", _title("Ways to cut decode attention", plan), columns)
    form = AttentionForm(plan.heads.dim**-0.5)
    for cut in _cuts():
        short = cut.tuning.short
        row = [*cut[:2], short.num_keys, short.num_stages, short.num_warps]
        times = []
        for batch, context in shapes:
            layer = Layer(plan.heads, [(context - 1, 1)] * batch, plan.dtype, watch.device, cut)
            times.append(watch.seconds(partial(layer.attend, form)) * 1e6)
        table.rows.append([*row, *times])
    return table


def _cuts() -> Iterator[Cut]:
    for more_segments in (64, 128, 256):
        for unit in (64, 128):
            yield Cut(more_segments, unit)
    for keys, stages, warps in _TILES:
        yield Cut(tuning=Tuning(short=TileShape(16, keys, warps, stages)))


@torch.inference_mode()
def sweep_prefill(watch: Stopwatch, plan: AttentionPlan) -> Table:
    """A prompt alone with other tiles: which defaults there should be."""
    columns = ["rows of a tile", "keys of a tile", "stages", "warps"]
    columns += [f"us of {num_tokens} tokens" for num_tokens in plan.prefill_tokens]
    table = Table("prefill_sweep", _title("Tiles of prefill attention", plan), columns)
    form = AttentionForm(plan.heads.dim**-0.5)
    for rows, keys, stages, warps in _LONG_TILES:
        cut = Cut(tuning=Tuning(long=TileShape(rows, keys, warps, stages)))
        times = []
        for num_tokens in plan.prefill_tokens:
            layer = Layer(plan.heads, [(0, num_tokens)], plan.dtype, watch.device, cut)
            times.append(watch.seconds(partial(layer.attend, form)) * 1e6)
        table.rows.append([rows, keys, stages, warps, *times])
    return table


@torch.inference_mode()
def measure_prefill(watch: Stopwatch, plan: AttentionPlan, rates: Rates) -> Table:
    """Products of one layer per second, for a prompt alone."""
    columns = ["tokens", "us", "TFLOP/s", "of product rate", "torch dense us", "ratio"]
    table = Table("attention_prefill", _title("Prefill attention, one layer", plan), columns)
    form = AttentionForm(plan.heads.dim**-0.5)
    for num_tokens in plan.prefill_tokens:
        layer = Layer(plan.heads, [(0, num_tokens)], plan.dtype, watch.device)
        seconds = watch.seconds(partial(layer.attend, form))
        pairs = num_tokens * (num_tokens + 1) / 2
        rate = 4.0 * pairs * plan.heads.num * plan.heads.dim / seconds
        dense_s = _dense_prefill_seconds(watch, layer, form)
        share, us, dense_us = rate / rates.flops, seconds * 1e6, dense_s * 1e6
        table.rows.append([num_tokens, us, rate / 1e12, share, dense_us, dense_s / seconds])
    return table


def _dense_decode_seconds(watch: Stopwatch, layer: Layer, form: AttentionForm) -> float:
    """torch's fused attention of the same sizes, queries of a group packed as tokens."""
    heads, batch = layer.heads, len(layer.counts)
    keys, values = layer.dense(0)
    keys, values = (part.expand(batch, *part.shape).contiguous() for part in (keys, values))
    query = layer.query.view(batch, heads.num_kv, -1, heads.dim)
    return watch.seconds(
        lambda: F.scaled_dot_product_attention(query, keys, values, scale=form.scaling)
    )


def _dense_prefill_seconds(watch: Stopwatch, layer: Layer, form: AttentionForm) -> float:
    keys, values = (part[None].contiguous() for part in layer.dense(0))
    query = layer.query.transpose(0, 1)[None].contiguous()
    return watch.seconds(
        lambda: F.scaled_dot_product_attention(
            query, keys, values, is_causal=True, scale=form.scaling, enable_gqa=True
        )
    )


def _fitting(watch: Stopwatch, plan: AttentionPlan) -> Iterator[tuple[int, int]]:
    """Batches and contexts whose cache, and a dense copy of it, fit."""
    limit = float("inf")
    if watch.is_gpu:
        limit = torch.cuda.mem_get_info()[0] * _MAX_MEMORY_SHARE / 2
    for batch in plan.decode_batches:
        for context in plan.decode_contexts:
            if _cache_bytes(plan, batch * context) < limit:
                yield batch, context


def _cache_bytes(plan: AttentionPlan, num_tokens: int) -> int:
    return 2 * num_tokens * plan.heads.num_kv * plan.heads.dim * plan.dtype.itemsize


def _title(what: str, plan: AttentionPlan) -> str:
    heads = plan.heads
    dtype = str(plan.dtype).removeprefix("torch.")
    return f"{what}, {heads.num} heads, {heads.num_kv} KV heads of {heads.dim}, {dtype}"

"""The subjects of the step benchmarks: models with random weights, runners, and their batches."""

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from baton.engine.protocol.batch import SampleRow, StepBatch
from baton.engine.protocol.messages import SamplingParams
from baton.model.gpu.gpu_runner import GpuRunner
from baton.model.gpu.step_inputs import StepLimits
from baton.model.load.load import LoadedModel
from baton.model.load.memory_need import MemoryNeed
from baton.model.load.source import ModelSource
from baton.model.tensors.attention import PAGED, AttentionForm
from baton.wire.kv_spec import KVSpec
from bench.gpu.gpu_machine import Rates
from bench.model_shape import ModelShape

BLOCK_SIZE = 16
SHAPES = {
    # Of Qwen3-0.6B and of Llama-3.1-8B, both built as a Qwen3 with tied embeddings.
    "0.6 B": ModelShape(151936, 1024, 28, 16, 8, 128, 3072),
    "8 B": ModelShape(128256, 4096, 32, 32, 8, 128, 14336),
    "nano": ModelShape(512, 64, 2, 4, 2, 16, 128),
}
_MAX_DRAFT = 8
_GREEDY = SamplingParams(max_tokens=1)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The measurements; the defaults are for a large GPU."""

    models: tuple[str, ...] = ("0.6 B", "8 B")
    dtype: torch.dtype = torch.bfloat16
    batches: tuple[int, ...] = (1, 8, 32, 128)
    context: int = 1200
    prefill_tokens: int = 4096
    num_steps: int = 20
    # New tokens of each sequence: drafts of four for one and for eight, chunks beside decodes.
    mixed: tuple[tuple[int, ...], ...] = (
        (5,),
        (5,) * 8,
        (100, *(1,) * 28),
        (480, *(1,) * 32),
    )
    # Transformers' own batching: batches, and output tokens of the shorter and longer run.
    peer_batches: tuple[int, ...] = (1, 32)
    peer_tokens: tuple[int, int] = (8, 40)


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run a step."""

    name: str
    is_fused: bool
    has_graphs: bool


WAYS = (
    Way("modules", is_fused=False, has_graphs=False),
    Way("modules, graph", is_fused=False, has_graphs=True),
    Way("fused", is_fused=True, has_graphs=False),
    Way("fused, graph", is_fused=True, has_graphs=True),
)


class Subject:
    """A model with random weights on the device, and runners with room for the largest batch."""

    def __init__(self, name: str, plan: StepPlan, device: torch.device) -> None:
        self.name, self.plan, self.device = name, plan, device
        self.shape = SHAPES[name]
        self.loaded = random_model(self.shape, plan, device)
        self.blocks_per_seq = self.loaded.kv_spec.num_blocks_for(plan.context)

    def runner(self, way: Way) -> GpuRunner:
        """A fresh one, whose cache is full of random numbers."""
        batch, num_tokens = max(self.plan.batches), self.plan.prefill_tokens
        prefill_blocks = self.loaded.kv_spec.num_blocks_for(num_tokens)
        most_blocks = max(self.blocks_per_seq, prefill_blocks)
        limits = StepLimits(max(batch, num_tokens), batch, most_blocks)
        runner = GpuRunner(self.loaded, limits, self.device, is_fused=way.is_fused)
        runner.captures_graphs = way.has_graphs
        runner.make_pool(max(batch * self.blocks_per_seq, prefill_blocks))
        runner.pool.rows.view(self.plan.dtype).normal_()
        return runner

    @torch.inference_mode()
    def exact_logits(self, batch: StepBatch, cache: torch.Tensor) -> torch.Tensor:
        """By the modules in float32, over `cache`. Comes before any runner: it copies the model."""
        model: Any = copy.deepcopy(self.loaded.model)
        model.float()
        pages = [
            (page.num_kv_heads, page.k_dim, page.v_dim, "float32")
            for page in self.loaded.kv_spec.layers
        ]
        loaded = replace(
            self.loaded,
            model=model,
            attention_modules=tuple(layer.self_attn for layer in model.model.layers),
            kv_spec=KVSpec.of_layers(BLOCK_SIZE, pages),
        )
        limits = StepLimits(len(batch.token_ids), len(batch.context_lens), self.blocks_per_seq)
        runner = GpuRunner(loaded, limits, self.device, is_fused=False)
        runner.make_pool(len(cache))
        runner.pool.rows.view(torch.float32).copy_(cache.view(self.plan.dtype))
        return runner.logits(batch).clone()

    def decode_batch(self, batch: int) -> StepBatch:
        """One token of each of so many sequences of the plan's context."""
        return self.mixed_batch([1] * batch)

    def mixed_batch(self, counts: list[int]) -> StepBatch:
        """So many new tokens of each sequence; each row of a few, the last one of many."""
        context, starts = self.plan.context, np.cumsum([0, *counts], dtype=np.int32)
        tables = np.arange(len(counts) * self.blocks_per_seq, dtype=np.int32)
        rows = [
            row
            for start, count in zip(starts.tolist(), counts, strict=False)
            for row in range(start if count <= _MAX_DRAFT else start + count - 1, start + count)
        ]
        return StepBatch(
            step=1,
            token_ids=np.arange(sum(counts)) % self.shape.vocab_size,
            positions=np.concatenate([np.arange(context - n, context) for n in counts]),
            query_starts=starts,
            context_lens=np.full(len(counts), context, np.int32),
            block_tables=tables.reshape(len(counts), -1),
            seq_ids=[],
            sample_rows=[SampleRow(row, _GREEDY, 0, 0) for row in rows],
        )

    def prefill_batch(self) -> StepBatch:
        """One prompt."""
        num_tokens = self.plan.prefill_tokens
        num_blocks = self.loaded.kv_spec.num_blocks_for(num_tokens)
        return StepBatch(
            step=1,
            token_ids=np.arange(num_tokens) % self.shape.vocab_size,
            positions=np.arange(num_tokens),
            query_starts=np.array([0, num_tokens], np.int32),
            context_lens=np.array([num_tokens], np.int32),
            block_tables=np.arange(num_blocks, dtype=np.int32)[None],
            seq_ids=[],
            sample_rows=[SampleRow(num_tokens - 1, _GREEDY, 0, 0)],
        )

    def limit_s(self, batch: int, rates: Rates) -> float:
        """The shortest decode step: weights and cache read once at the best rate."""
        cache = batch * self.plan.context * self.shape.kv_bytes_per_token
        return (self.shape.weight_bytes + cache) / rates.read_bytes_per_s


def random_model(shape: ModelShape, plan: StepPlan, device: torch.device) -> LoadedModel:
    """A Qwen3 of that shape, made on the device; nothing is read from files."""
    max_len = max(plan.context, plan.prefill_tokens) + sum(plan.peer_tokens)
    config = transformers.Qwen3Config(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.intermediate_size,
        max_position_embeddings=max_len,
        tie_word_embeddings=True,
    )
    with device:
        model: Any = transformers.AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=plan.dtype, attn_implementation=PAGED
        )
    model.eval().requires_grad_(False)
    layers = model.model.layers
    dtype = str(plan.dtype).removeprefix("torch.")
    page = (shape.num_kv_heads, shape.head_dim, shape.head_dim, dtype)
    return LoadedModel(
        model=model,
        attention_modules=tuple(layer.self_attn for layer in layers),
        attention_forms=(AttentionForm(shape.head_dim**-0.5),) * shape.num_layers,
        source=ModelSource(Path(), "random", "random"),
        kv_spec=KVSpec.of_layers(BLOCK_SIZE, [page] * shape.num_layers),
        vocab_size=shape.vocab_size,
        max_model_len=max_len,
        eos_token_ids=(),
        memory=MemoryNeed(0, 0, None),
    )

"""The subjects of the step benchmarks: models with random weights, runners, and their batches."""

from dataclasses import dataclass
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

    def decode_batch(self, batch: int) -> StepBatch:
        """One token of each of so many sequences of the plan's context."""
        tables = np.arange(batch * self.blocks_per_seq, dtype=np.int32)
        return StepBatch(
            step=1,
            token_ids=np.arange(batch),
            positions=np.full(batch, self.plan.context - 1),
            query_starts=np.arange(batch + 1, dtype=np.int32),
            context_lens=np.full(batch, self.plan.context, np.int32),
            block_tables=tables.reshape(batch, -1),
            seq_ids=[],
            sample_rows=[SampleRow(row, _GREEDY, 0, 0) for row in range(batch)],
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
        """The shortest decode step: weights and cache read once at the rate of a copy."""
        cache = batch * self.plan.context * self.shape.kv_bytes_per_token
        return (self.shape.weight_bytes + cache) / rates.copy_bytes_per_s


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
        fingerprint="",
        kv_spec=KVSpec.of_layers(BLOCK_SIZE, [page] * shape.num_layers),
        vocab_size=shape.vocab_size,
        max_model_len=max_len,
        eos_token_ids=(),
        memory=MemoryNeed(0, 0, None),
    )

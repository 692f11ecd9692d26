"""A model without its weights: what a worker holds of it, computed by the code that loads it.

Imports torch and transformers; nothing else in this package does.
"""

import dataclasses
from pathlib import Path
from typing import Any

from torch import nn

from baton.cli.sizing.machines import Accelerator
from baton.cli.sizing.worker import DoesNotFit, Weights, Worker
from baton.model.load.load import LoadedModel, LoadOptions, outline_model
from baton.model.load.load_error import LoadError
from baton.model.load.memory_need import LargestStep, MemoryNeed, memory_need
from baton.model.load.pool_size import PoolOptions, choose_pool
from baton.system.byte_size import format_bytes

BLOCK_SIZES = {"baton": 16, "vllm": 32}


class ModelOutline:
    """A model as workers of one kind hold it: engine, ranks and share of the device's memory."""

    def __init__(self, model: str, engine: str, num_ranks: int, options: LoadOptions) -> None:
        """Raises LoadError."""
        options = dataclasses.replace(options, block_size=BLOCK_SIZES[engine])
        self._outline = outline_model(model, options)
        self._num_ranks = num_ranks
        self.name = self._outline.source.name
        self._weight_bytes = _stored_bytes(Path(model)) if _is_kept(engine, self._outline) else None
        num_heads = min(layer.num_kv_heads for layer in self._outline.kv_spec.layers)
        if num_heads % num_ranks:
            raise LoadError(
                f"model {self.name}: {num_ranks} ranks cannot share {num_heads} KV heads"
            )

    @property
    def weight_bytes(self) -> int:
        return self._weight_bytes or self._outline.memory.weight_bytes

    def worker(self, device: Accelerator, memory_share: float, max_batch: int) -> Worker:
        """A worker with room for so many sequences. Raises DoesNotFit."""
        memory = self._need(max_batch, device.free_bytes)
        if (memory.room_bytes(memory_share) or 0) < self._outline.kv_spec.row_bytes:
            raise DoesNotFit(
                f"model {self.name}: {format_bytes(memory.weight_bytes)} of weights and "
                f"{format_bytes(memory.activation_bytes)} of activations do not fit into "
                f"{memory_share:.0%} of {format_bytes(device.free_bytes * self._num_ranks)}: "
                "take larger GPUs, or --engine vllm with a larger --tp or quantised weights"
            )
        loaded = dataclasses.replace(self._outline, memory=memory)
        pool_bytes = choose_pool(loaded, PoolOptions(None, memory_share, max_batch))
        spec = loaded.kv_spec
        return Worker(
            weights=_weights(loaded, memory.weight_bytes),
            activation_bytes=memory.activation_bytes,
            kv_bytes_per_token=spec.row_bytes // spec.block_size,
            num_kv_tokens=pool_bytes // spec.row_bytes * spec.block_size,
            num_ranks=self._num_ranks,
            max_batch=max_batch,
            max_model_len=loaded.max_model_len,
        )

    def _need(self, max_batch: int, free_bytes: int) -> MemoryNeed:
        """Of all ranks together: they share the weights, and each has activations of its own."""
        step = LargestStep(num_rows=max_batch)
        dtype = self._outline.model.dtype
        need = memory_need(self._outline.model, dtype, step)
        activation_bytes = need.activation_bytes * self._num_ranks
        return MemoryNeed(self.weight_bytes, activation_bytes, free_bytes * self._num_ranks)


def _is_kept(engine: str, outline: LoadedModel) -> bool:
    """Quantised weights stay so: Baton's own engine decodes them at load, vLLM's does not."""
    return engine == "vllm" and hasattr(outline.model.config, "quantization_config")


def _stored_bytes(folder: Path) -> int:
    """The weight files. Raises LoadError where there are none."""
    found = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    if found:
        return found
    raise LoadError(f"model {folder}: its weights are quantised: give the folder that has them")


def _weights(loaded: LoadedModel, num_bytes: int) -> Weights:
    model: Any = loaded.model
    embeddings = model.get_input_embeddings().weight
    is_shared = model.get_output_embeddings().weight is embeddings
    text = model.config.get_text_config()
    num_used = getattr(text, "num_experts_per_tok", None)
    num_active = sum(_num_active(each, num_used) for each in model.parameters())
    num_active -= 0 if is_shared else embeddings.numel()
    heads = text.num_attention_heads
    layers = loaded.kv_spec.layers
    attention = sum(2 * heads * (layer.k_dim + layer.v_dim) for layer in layers)
    return Weights(num_bytes, 2.0 * num_active, attention)


def _num_active(parameter: nn.Parameter, num_experts_used: int | None) -> float:
    """The weights that a token uses: of stacked experts a few."""
    if parameter.dim() != 3 or num_experts_used is None:
        return parameter.numel()
    return parameter.numel() * num_experts_used / parameter.shape[0]

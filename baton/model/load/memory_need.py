"""Checks that a model fits before its weights are read: otherwise the kernel kills the process.

Sizes come from the module that transformers would build, made without memory. Activations are an
estimate for the largest step; the pool is sized in `pool_size.py` from what is left.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from baton.model.load.load_error import LoadError, one_line_errors
from baton.model.transformers_api import PretrainedConfig, PreTrainedModel
from baton.system.byte_size import format_bytes

CPU = torch.device("cpu")
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
# Alive at once for each token of a step, in float32: outputs of the widest layer (gate, up and
# their product), hidden states (residual, norm, queries, keys, values and what they are made of).
_WIDE_COPIES, _HIDDEN_COPIES = 3, 8
_LOGITS_COPIES = 3  # the model's, float32, and what sampling makes of them
_SCRATCH_BYTES = 64 * 2**20  # scores of attention, gathered blocks


@dataclass(frozen=True, slots=True)
class LargestStep:
    """The most that one step computes."""

    num_tokens: int = 2048
    num_rows: int = 64  # of logits


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """The memory of a model beside its KV pool, and the free memory before it was loaded."""

    weight_bytes: int
    activation_bytes: int
    free_bytes: int | None  # None = unknown on this system

    def room_bytes(self, share: float) -> int | None:
        """What weights and activations leave of a share of the free memory; may be negative."""
        if self.free_bytes is None:
            return None
        return int(self.free_bytes * share) - self.weight_bytes - self.activation_bytes

    def check(self, name: str, pool_bytes: int) -> None:
        """Raises LoadError, with all numbers, when this and the pool exceed free memory."""
        needed = self.weight_bytes + self.activation_bytes + pool_bytes
        if self.free_bytes is None or needed <= self.free_bytes:
            return
        parts = {
            "weights": self.weight_bytes,
            "the KV cache": pool_bytes,
            "activations": self.activation_bytes,
        }
        listed = ", ".join(
            f"{format_bytes(size)} for {what}" for what, size in parts.items() if size
        )
        raise LoadError(
            f"model {name}: needs {format_bytes(needed)} of memory ({listed}), "
            f"{format_bytes(self.free_bytes)} are free"
        )


def make_outline(
    name: str, model_class: type[PreTrainedModel], config: PretrainedConfig
) -> PreTrainedModel:
    """The module that transformers would build, without memory. Raises LoadError."""
    with one_line_errors(name), torch.device("meta"):
        return model_class(config)


def memory_need(
    outline: PreTrainedModel, dtype: torch.dtype, step: LargestStep, device: torch.device = CPU
) -> MemoryNeed:
    """Estimate what the model takes there with weights of `dtype`.

    On a GPU the weights alone: activations are measured there (`baton/model/gpu/gpu_start.py`).
    """
    if device.type == "cuda":
        weights = sum(parameter.numel() for parameter in outline.parameters())
        return MemoryNeed(weights * dtype.itemsize, 0, device_free_bytes())
    weight_bytes = _num_weights(outline) * dtype.itemsize
    return MemoryNeed(weight_bytes, _activation_bytes(outline, step), free_bytes())


def _num_weights(model: PreTrainedModel) -> int:
    """Shared embeddings count twice: a packed output layer is a copy of its own."""
    inputs: Any = model.get_input_embeddings()
    outputs: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    is_shared = outputs is not None and outputs.weight is inputs.weight
    tied = bool(model.config.get_text_config().tie_word_embeddings)
    extra: int = inputs.weight.numel() if is_shared and tied else 0
    return sum(parameter.numel() for parameter in model.parameters()) + extra


def _activation_bytes(model: PreTrainedModel, step: LargestStep) -> int:
    embeddings: Any = model.get_input_embeddings()
    vocab_size, hidden_size = map(int, embeddings.weight.shape)
    config = model.config.get_text_config()
    num_experts = getattr(config, "num_experts_per_tok", None) or 1
    widest = hidden_size
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.out_features < vocab_size:
            widest = max(widest, module.out_features)
    for parameter in model.parameters():
        if parameter.dim() == 3:  # the stacked weights of experts
            widest = max(widest, max(parameter.shape[1:]) * num_experts)
    num_values = _WIDE_COPIES * widest + _HIDDEN_COPIES * hidden_size
    logits_bytes = step.num_rows * vocab_size * _LOGITS_COPIES * 4
    return step.num_tokens * num_values * 4 + logits_bytes + _SCRATCH_BYTES


def device_free_bytes() -> int:
    """The free memory of the GPU, with that which torch has cached and does not use."""
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info()[0])


def free_bytes() -> int | None:
    """The memory that the machine and the control group still leave; None = unknown."""
    limits = [limit for limit in (_machine_free(), _cgroup_free()) if limit is not None]
    return min(limits, default=None)


def _machine_free() -> int | None:
    if not _MEMINFO.is_file():
        return None
    for line in _MEMINFO.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup_free() -> int | None:
    limit_file, used_file, parts_file = (
        _CGROUP / name for name in ("memory.max", "memory.current", "memory.stat")
    )
    if not (limit_file.is_file() and used_file.is_file() and parts_file.is_file()):
        return None
    limit = limit_file.read_text().strip()
    if limit == "max":
        return None
    parts = dict(line.split() for line in parts_file.read_text().splitlines())
    # Pages of files (a model just downloaded) count as used, but give way.
    reclaimable = sum(int(parts.get(name, 0)) for name in ("active_file", "inactive_file"))
    return int(limit) - int(used_file.read_text()) + reclaimable

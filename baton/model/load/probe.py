"""One dry run of a model, recording what its attention layers really receive.

Shapes of the KV cache come from here, never from names in a configuration. The run also proves that
our attention, which sees no masks, means the same: transformers builds each layer's mask over a
grid of positions up to the model's whole context, and it must be the one that follows from the
layer's keyword arguments. What differs (chunked, bidirectional, prefix masks) is refused.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from baton.model.load.load_error import LoadError
from baton.model.tensors.attention import AttentionForm, default_scaling
from baton.model.tensors.kv_pool import DTYPE_NAMES
from baton.model.transformers_api import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from baton.wire.kv_spec import KVSpec

_PROBE = "baton_probe"
_GRID = 32  # tokens of the dry run, and positions of the grid over which masks are compared
_IGNORED_TENSORS = {"position_ids", "cache_position"}

_MaskFunction = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class ProbedModel:
    """Attention modules in the order of the pool's layers, and the cache that they need."""

    modules: tuple[nn.Module, ...]
    forms: tuple[AttentionForm, ...]  # of the same layers
    kv_spec: KVSpec


@dataclass(slots=True)
class _Recorder:
    """Stands in for attention and mask building during the dry run."""

    positions: torch.Tensor  # [_GRID] ascending, where the model is if it has values
    modules: dict[int, nn.Module] = field(default_factory=dict)
    shapes: dict[int, tuple[int, int, int, str]] = field(default_factory=dict)
    forms: dict[int, AttentionForm] = field(default_factory=dict)

    def build_mask(self, *_: Any, mask_function: _MaskFunction, **__: Any) -> torch.Tensor:
        """The mask over the grid instead of over this run's tokens, `[1, 1, _GRID, _GRID]`."""
        zero = torch.zeros_like(self.positions[0])
        seen = mask_function(zero, zero, self.positions[:, None], self.positions[None])
        return seen.expand(_GRID, _GRID)[None, None]

    def attend(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        sliding_window: int | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        """Record one layer; returns zeros, so that later layers run too."""
        layer = getattr(module, "layer_idx", None)
        owner = f"{type(module).__name__} {'without index' if layer is None else layer}"
        if layer is None or layer in self.modules:
            raise LoadError(f"{owner} attends more than once per token")
        if not (query.shape[2] == key.shape[2] == value.shape[2] == _GRID):
            raise LoadError(f"{owner} does not attend to its own tokens alone")
        if attention_mask is not None:
            self._check_mask(owner, attention_mask, sliding_window)
        self.forms[layer] = AttentionForm(
            default_scaling(module, query, kwargs.pop("scaling", None)),
            sliding_window,
            kwargs.pop("softcap", None),
            kwargs.pop("s_aux", None),
        )
        _check_arguments(owner, kwargs)
        self.modules[layer] = module
        dtype = DTYPE_NAMES.get(key.dtype)
        if dtype is None or {query.dtype, value.dtype} != {key.dtype}:
            found = f"{query.dtype}, {key.dtype} and {value.dtype}"
            raise LoadError(f"{owner} has queries, keys and values of {found}")
        self.shapes[layer] = (key.shape[1], key.shape[3], value.shape[3], dtype)
        return query.new_zeros(1, _GRID, query.shape[1], value.shape[3]), None

    def _check_mask(self, owner: str, mask: torch.Tensor, window: int | None) -> None:
        behind = self.positions[:, None] - self.positions[None]
        expected = (behind >= 0) if window is None else (behind >= 0) & (behind < window)
        if mask.shape[-2:] != expected.shape or not bool((mask == expected).all()):
            raise LoadError(f"{owner} needs a mask that is neither causal nor a sliding window")


def _check_arguments(owner: str, kwargs: dict[str, Any]) -> None:
    if kwargs.pop("is_causal", None) is False:
        raise LoadError(f"{owner} is not causal")
    for name, value in kwargs.items():
        if isinstance(value, torch.Tensor) and name not in _IGNORED_TENSORS:
            raise LoadError(f"{owner} needs {name!r}, which is not supported")


@torch.inference_mode()
def probe_model(
    model: PreTrainedModel, vocab_size: int, max_model_len: int, block_size: int
) -> ProbedModel:
    """Dry-run `model` and lay out its cache. Raises LoadError; the message names the layer."""
    # Without weights no values: with a mask transformers does not look at positions for several
    # sequences in one.
    is_outline = model.device.type == "meta"
    positions = _grid_positions(max_model_len)
    recorder = _Recorder(positions if is_outline else positions.to(model.device))
    # The registries are global: the entries of an earlier probe are replaced.
    AttentionInterface.register(_PROBE, recorder.attend)
    AttentionMaskInterface.register(_PROBE, recorder.build_mask)
    chosen = model.config._attn_implementation
    model.set_attn_implementation(_PROBE)
    tokens = torch.arange(_GRID, device=model.device)[None]
    last = torch.tensor([_GRID - 1], device=model.device)
    arguments = {"attention_mask": torch.ones_like(tokens)} if is_outline else {}
    output = model(
        input_ids=tokens % vocab_size,
        position_ids=tokens % max_model_len,
        use_cache=False,
        logits_to_keep=last,
        **arguments,
    )
    model.set_attn_implementation(chosen)
    if not recorder.modules:
        raise LoadError(f"{type(model).__name__} has no layer that uses replaceable attention")
    if output.logits.shape[:2] != (1, 1):
        raise LoadError(f"{type(model).__name__} cannot return the logits of chosen tokens alone")
    order = sorted(recorder.modules)
    spec = KVSpec.of_layers(block_size, [recorder.shapes[layer] for layer in order])
    modules = tuple(recorder.modules[layer] for layer in order)
    return ProbedModel(modules, tuple(recorder.forms[layer] for layer in order), spec)


def _grid_positions(max_model_len: int) -> torch.Tensor:
    """Ascending positions below `max_model_len`: dense at the start, then even to the end."""
    dense = torch.arange(_GRID // 2, dtype=torch.float64)
    even = torch.linspace(_GRID // 2, max_model_len - 1, _GRID // 2, dtype=torch.float64)
    return torch.cat([dense, even]).long().clamp(max=max_model_len - 1)

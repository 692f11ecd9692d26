"""Replaces modules of a transformers model by faster ones that give the same results.

Found by structure and by what flows through the model, never by its name: linear layers that get
the same input become one, gated MLPs and RMSNorms become one call each, all weights are packed.
Each replacement is proven on random rows against the module that it replaces, and left out when
it differs (such as Gemma's norm, which scales by 1 + weight). A model that touches the weights of
its layers itself stays as it is.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn

from baton.model.cpu.fused_modules import FusedPart, GatedMlp, PackedNorm, SharedProduct
from baton.model.cpu.linear import OnednnLinear, PackedLinear, make_linear
from baton.model.cpu.packed_matrix import PackedMatrix, WeightMemory
from baton.model.transformers_api import PreTrainedModel

_NUM_TOKENS = 5
_REPLACEMENTS = (FusedPart, GatedMlp, PackedNorm, PackedLinear, OnednnLinear)


class _Found(NamedTuple):
    """A linear layer where it hangs, and the identity of the input that it was called with."""

    parent: nn.Module
    name: str
    layer: nn.Linear
    input_key: int

    def replace(self, module: nn.Module) -> None:
        setattr(self.parent, self.name, module)


@torch.inference_mode()
def accelerate(model: PreTrainedModel) -> None:
    """Change `model` in place; its attention implementation must work without a cache.

    Weights that were packed are dropped, so this is for once. Safe to call again.
    """
    if any(isinstance(module, _REPLACEMENTS) for module in model.modules()):
        return
    memory = WeightMemory()
    layers = _layers_by_input(model)
    if layers is None:
        return
    _replace_norms(model)
    gated = _replace_gated_mlps(model, memory)
    for group in _groups(layers):
        left = [found for found in group if found.layer not in gated]
        if len(left) > 1 and _fuse(left, memory):
            continue
        for found in left:
            _replace_one(found, memory)


class _Recorded(nn.Module):
    """Stands in for a linear layer, without its weight, and remembers what it was called with."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.inputs: list[torch.Tensor] = []
        self._call = layer.forward

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.inputs.append(rows)  # kept, so that no other tensor gets its identity
        return self._call(rows)


def _layers_by_input(model: PreTrainedModel) -> list[_Found] | None:
    """All linear layers that one dry run calls once; None when the model needs their weights."""
    places = list(_linear_places(model))
    stand_ins = [_Recorded(layer) for _, _, layer in places]
    for (parent, name, _), stand_in in zip(places, stand_ins, strict=True):
        setattr(parent, name, stand_in)
    try:
        _dry_run(model)
    except AttributeError:
        return None
    finally:
        for parent, name, layer in places:
            setattr(parent, name, layer)
    return [
        _Found(parent, name, layer, id(stand_in.inputs[0]))
        for (parent, name, layer), stand_in in zip(places, stand_ins, strict=True)
        if len(stand_in.inputs) == 1
    ]


def _linear_places(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    seen: set[nn.Module] = set()
    for parent in model.modules():
        for name, child in parent.named_children():
            if type(child) is nn.Linear and child not in seen:
                seen.add(child)
                yield parent, name, child


def _dry_run(model: PreTrainedModel) -> None:
    tokens = torch.arange(_NUM_TOKENS)[None]
    chosen = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        model(input_ids=tokens, position_ids=tokens, use_cache=False)
    finally:
        model.set_attn_implementation(chosen)


def _groups(layers: list[_Found]) -> list[list[_Found]]:
    """Layers of one parent that got one and the same input."""
    groups: dict[tuple[int, int], list[_Found]] = {}
    for found in layers:
        groups.setdefault((id(found.parent), found.input_key), []).append(found)
    return list(groups.values())


def _fuse(group: list[_Found], memory: WeightMemory) -> bool:
    """Make a group one product; False when the layers do not fit together."""
    weights = [found.layer.weight for found in group]
    biases = [found.layer.bias for found in group]
    if not PackedMatrix.can_pack(weights):
        return False
    product = make_linear(weights, biases, memory)
    if product is None:
        return False
    shared = SharedProduct(product, tuple(weight.shape[0] for weight in weights))
    for index, found in enumerate(group):
        found.replace(FusedPart(shared, index))
    return True


def _replace_one(found: _Found, memory: WeightMemory) -> None:
    made = make_linear([found.layer.weight], [found.layer.bias], memory)
    if made is not None:
        found.replace(made)


def _replace_gated_mlps(model: nn.Module, memory: WeightMemory) -> set[nn.Module]:
    """MLPs of three linear layers, silu(gate) * up in between. Returns the layers in them."""
    done: set[nn.Module] = set()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            parts = [getattr(child, part, None) for part in GatedMlp.PARTS]
            if not all(type(part) is nn.Linear for part in parts):
                continue
            made = GatedMlp.of(child, tuple(parts), memory)  # type: ignore[arg-type]
            if made is not None:
                setattr(parent, name, made)
                done.update(part for part in parts if part is not None)
    return done


def _replace_norms(model: nn.Module) -> None:
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            made = PackedNorm.of(child)
            if made is not None:
                setattr(parent, name, made)

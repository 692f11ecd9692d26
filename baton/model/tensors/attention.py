"""The seam between transformers' modules and our paged attention.

A model created with `attn_implementation=PAGED` calls `_paged_attention` in each layer; which layer
of the cache that is was attached to the module by `attach`. No mask function is registered under
this name, so transformers builds no masks: causality, sliding windows, softcap and sinks are the
backend's work, from the keyword arguments of each call. `model/load/probe.py` proves that nothing
else than those would have been in the masks.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from baton.engine.protocol.batch import LayerMarks, StepBatch
from baton.model.tensors.kv_pool import KVPool
from baton.model.transformers_api import AttentionInterface

PAGED = "baton_paged"
_LAYER_ATTRIBUTE = "baton_layer"


class AttentionForm(NamedTuple):
    """The options of one layer's attention beyond softmax(QK)V with a causal mask."""

    scaling: float
    sliding_window: int | None = None  # a query sees this many latest positions, itself included
    softcap: float | None = None
    sinks: torch.Tensor | None = None  # [num_heads], one more logit in each softmax


class AttentionBackend(Protocol):
    """Stores K and V in the pool and attends over it; one implementation per kind of device."""

    def bind(self, pool: KVPool) -> None:
        """Use this pool from now on."""

    def begin_step(self, batch: StepBatch) -> None:
        """Prepare what all layers of this step share. Keeps no reference to the batch."""

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        form: AttentionForm,
    ) -> torch.Tensor:
        """Store the new `key` and `value` `[num_kv_heads, T, dim]`, then attend.

        query `[num_heads, T, k_dim]` -> `[T, num_heads, v_dim]`.
        """


class TellingAttention:
    """Another AttentionBackend, which calls at the marks of a step as its layers are stored.

    Layers count in the order of the pool. Of a model that computes them in another order nothing is
    told.
    """

    def __init__(self, backend: AttentionBackend) -> None:
        self._backend = backend
        self._marks: LayerMarks | None = None
        self._num_stored = 0

    def bind(self, pool: KVPool) -> None:
        self._backend.bind(pool)

    def begin_step(self, batch: StepBatch) -> None:
        self._marks, self._num_stored = batch.layer_marks, 0
        self._backend.begin_step(batch)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        form: AttentionForm,
    ) -> torch.Tensor:
        output = self._backend.attend(layer, query, key, value, form)
        if self._marks is not None and layer == self._num_stored:
            self._num_stored += 1
            if self._num_stored in self._marks.marks:
                self._marks.reached(self._num_stored)
        return output


class _AttachedLayer(NamedTuple):
    backend: AttentionBackend
    layer: int


def attach(modules: Sequence[nn.Module], backend: AttentionBackend) -> None:
    """Make the attention modules, in the order of the pool's layers, use this backend."""
    for layer, module in enumerate(modules):
        setattr(module, _LAYER_ATTRIBUTE, _AttachedLayer(backend, layer))


def default_scaling(module: nn.Module, query: torch.Tensor, scaling: float | None) -> float:
    """The factor on QK: what the call says, else what the module says, else 1/sqrt(dim)."""
    if scaling is None:
        scaling = getattr(module, "scaling", None)
    return float(query.shape[-1] ** -0.5 if scaling is None else scaling)


def _paged_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """The registered function: `[1, H, T, D]` in, `([1, T, H, Dv], None)` out."""
    backend, layer = getattr(module, _LAYER_ATTRIBUTE)
    form = AttentionForm(default_scaling(module, query, scaling), sliding_window, softcap, s_aux)
    return backend.attend(layer, query[0], key[0], value[0], form)[None], None


AttentionInterface.register(PAGED, _paged_attention)

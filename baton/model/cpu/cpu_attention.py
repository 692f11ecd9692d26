"""Paged attention on CPU by compiled kernels (`csrc/attention.cpp`), for bfloat16 and float32.

Reads keys and values where they lie in the pool, once, and shares the work out to torch's threads.
A row's result depends on nothing but its own sequence: not on batch mates nor on the number of
threads, and up to eight query tokens each get what they would get alone. What all layers share is
prepared once a step; a call costs a few microseconds of Python.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from baton.engine.protocol.batch import StepBatch
from baton.model.cpu import native
from baton.model.cpu.native_structs import DTYPES, Form, Layer, Step, layers_of
from baton.model.tensors.attention import AttentionForm
from baton.model.tensors.kv_pool import KVPool
from baton.wire.kv_spec import KVSpec


class _BoundLayer:
    """One layer's pages and form, as the kernels want them."""

    __slots__ = ("form", "form_address", "layer", "layer_address", "native_form", "sinks", "v_dim")

    def __init__(self, layer: Layer) -> None:
        self.layer = layer
        self.layer_address = ctypes.addressof(layer)
        self.v_dim = layer.v_dim
        self.native_form = Form()
        self.form_address = ctypes.addressof(self.native_form)
        self.form: AttentionForm | None = None
        self.sinks: torch.Tensor | None = None  # float32, kept because native_form points to it

    def use(self, form: AttentionForm) -> None:
        self.form = form
        self.sinks = None if form.sinks is None else form.sinks.detach().float().contiguous()
        self.native_form.scaling = form.scaling
        self.native_form.softcap = form.softcap or 0.0
        self.native_form.window = form.sliding_window or 0
        self.native_form.sinks = None if self.sinks is None else self.sinks.data_ptr()


class CpuAttention:
    """An AttentionBackend for tensors in main memory; see `supports` for when there is one."""

    def __init__(self, isa: str | None = None) -> None:
        """Use the kernels of `isa` (one of `native.usable_isas()`); by default the best ones."""
        library = native.library()
        assert library is not None, "the kernels are not built"
        usable = native.usable_isas()
        self._library = library
        self._attend = _declared_attend(library)
        self._layers: list[_BoundLayer] = []
        self._step = Step(isa=usable.index(isa or usable[-1]))
        self._step_address = ctypes.addressof(self._step)
        self._arrays: tuple[np.ndarray, ...] = ()  # what _step points to

    @staticmethod
    def supports(spec: KVSpec) -> bool:
        """The kernels are built, and for the types of all layers."""
        is_known = all(layer.dtype in DTYPES for layer in spec.layers)
        return is_known and native.library() is not None

    def bind(self, pool: KVPool) -> None:
        self._layers = [_BoundLayer(layer) for layer in layers_of(pool)]
        self._pool = pool  # keeps the memory alive

    def begin_step(self, batch: StepBatch) -> None:
        starts, lengths = batch.query_starts.copy(), batch.context_lens.copy()
        tables = batch.block_tables.copy()
        assert starts.dtype == lengths.dtype == tables.dtype == np.int32
        self._arrays = (starts, lengths, tables)
        step = self._step
        step.query_starts, step.context_lens = starts.ctypes.data, lengths.ctypes.data
        step.block_tables, step.table_stride = tables.ctypes.data, tables.shape[1]
        step.num_seqs = len(lengths)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        form: AttentionForm,
    ) -> torch.Tensor:
        bound = self._layers[layer]
        if bound.form is None or bound.form[:3] != form[:3] or bound.form.sinks is not form.sinks:
            bound.use(form)
        num_heads, num_tokens, _ = query.shape
        output = query.new_empty(num_tokens, num_heads, bound.v_dim)
        query, query_head, query_token = _dense_dims(query)
        key, key_head, key_token = _dense_dims(key)
        value, value_head, value_token = _dense_dims(value)
        self._attend(
            self._step_address,
            bound.layer_address,
            bound.form_address,
            query.data_ptr(),
            query_head,
            query_token,
            key.data_ptr(),
            key_head,
            key_token,
            value.data_ptr(),
            value_head,
            value_token,
            num_heads,
            output.data_ptr(),
        )
        return output


def _dense_dims(heads: torch.Tensor) -> tuple[torch.Tensor, int, int]:
    """A tensor whose vectors are dense, and its strides from head to head and token to token."""
    head_stride, token_stride, stride = heads.stride()
    if stride != 1:
        return _dense_dims(heads.contiguous())
    return heads, head_stride, token_stride


def _declared_attend(library: ctypes.CDLL) -> Callable[..., None]:
    shared: list[Any] = [ctypes.c_void_p] * 3
    heads: list[Any] = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64] * 3
    library.baton_attend.argtypes = [*shared, *heads, ctypes.c_int32, ctypes.c_void_p]
    library.baton_attend.restype = None
    attend: Callable[..., None] = library.baton_attend
    return attend

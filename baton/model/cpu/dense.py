"""The forward pass of dense Llama-like decoders as one call of compiled code (`csrc/dense_step.h`).

Takes a transformers model whose modules `surgery.py` has replaced, and uses their packed weights;
what decides is which modules it finds where, and what the probe saw of its attention. A step is
then one parallel region over all layers, for prefill and decode alike: at small sizes the calls
between Python and kernels are most of a step's time. Knows nothing of sampling.
"""

import ctypes
from typing import Any, NamedTuple

import numpy as np
import torch

from baton.engine.protocol.batch import LayerMarks, StepBatch
from baton.model.cpu import native
from baton.model.cpu import native_structs as structs
from baton.model.cpu.fused_modules import FusedPart, GatedMlp, PackedNorm
from baton.model.cpu.linear import PackedLinear, best_isa, native_call
from baton.model.cpu.packed_matrix import PANEL_COLUMNS, PackedMatrix
from baton.model.tensors.attention import AttentionForm
from baton.model.tensors.kv_pool import KVPool
from baton.model.transformers_api import PreTrainedModel

# transformers' classes whose layers are: norm, rotated attention, add; norm, gated MLP, add.
FAMILY = (
    "LlamaForCausalLM",
    "MinistralForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "SeedOssForCausalLM",
)
# Kinds of rotation whose frequencies do not change from step to step.
FIXED_ROTATIONS = ("default", "linear", "llama3", "yarn")


class NotDense(Exception):
    """A model is not computed this way; the message says why."""


class DenseWeights(NamedTuple):
    """A model as the compiled step wants it, and all that it points to."""

    model: structs.DenseModel
    num_logits: int
    owners: list[Any]


class DenseForward:
    """A ForwardPass; `bind` comes before the first `logits`.

    A deterministic one gives each token the logits that it would get alone in its step.
    """

    def __init__(self, weights: DenseWeights, *, is_deterministic: bool = False) -> None:
        self._weights = weights
        self._is_deterministic = is_deterministic
        self._logits = torch.empty(0, weights.num_logits)
        self._pages: Any = None

    def bind(self, pool: KVPool) -> None:
        """Use this pool from now on; it is kept alive."""
        pages = structs.layers_of(pool)
        self._pages = (structs.Layer * len(pages))(*pages)
        self._pool = pool

    def logits(self, batch: StepBatch) -> torch.Tensor:
        """Compute the batch; float32 logits `[num_sample_rows, vocab]`, valid until the next call.

        The arrays of `batch` are only read, and not kept.
        """
        rows = np.array([row.token_row for row in batch.sample_rows], np.int32)
        if len(self._logits) < len(rows):
            self._logits = torch.empty(len(rows), self._weights.num_logits)
        native_batch = structs.DenseBatch(
            attention=_native_step(batch, is_fixed=self._is_deterministic),
            token_ids=_address(batch.token_ids, np.int64),
            positions=_address(batch.positions, np.int64),
            logit_rows=rows.ctypes.data,
            logits=self._logits.data_ptr(),
            num_tokens=len(batch.token_ids),
            num_logit_rows=len(rows),
            num_threads=torch.get_num_threads(),
        )
        if batch.layer_marks is None:
            self._run(native_batch)
        else:
            self._run_to_marks(native_batch, batch.layer_marks)
        return self._logits[: len(rows)]

    def _run(self, batch: structs.DenseBatch) -> None:
        native_call("baton_dense_step")(
            ctypes.addressof(self._weights.model),
            ctypes.addressof(self._pages),
            ctypes.addressof(batch),
        )

    def _run_to_marks(self, batch: structs.DenseBatch, layer_marks: LayerMarks) -> None:
        """What a call at a mark raises is raised when the step is over: compiled code is not left
        in between."""
        kept = _KeptFailure()

        def reached(mark: int) -> None:
            with kept:
                layer_marks.reached(mark)

        marks = np.array(layer_marks.marks, np.int32)
        batch.marks, batch.num_marks = marks.ctypes.data, len(marks)
        batch.reached = structs.Reached(reached)
        self._run(batch)
        if kept.failure is not None:
            raise kept.failure


class _KeptFailure:
    """Keeps what is raised inside, the last one."""

    failure: BaseException | None = None

    def __enter__(self) -> None:
        """Nothing."""

    def __exit__(self, _: object, failure: BaseException | None, __: object) -> bool:
        self.failure = failure or self.failure
        return True


def _native_step(batch: StepBatch, *, is_fixed: bool) -> structs.Step:
    tables = batch.block_tables
    assert tables.strides[1] == tables.itemsize
    return structs.Step(
        query_starts=_address(batch.query_starts, np.int32),
        context_lens=_address(batch.context_lens, np.int32),
        block_tables=tables.ctypes.data,
        table_stride=tables.strides[0] // tables.itemsize,
        num_seqs=len(batch.context_lens),
        isa=best_isa(),
        is_fixed=is_fixed,
    )


def _address(array: "np.ndarray[Any, Any]", dtype: type) -> int:
    assert array.dtype == dtype
    assert array.flags.c_contiguous
    return array.ctypes.data


def dense_weights(model: PreTrainedModel, forms: tuple[AttentionForm, ...]) -> DenseWeights:
    """The packed weights of `model`, which keeps working. Raises NotDense with the reason."""
    if type(model).__name__ not in FAMILY:
        raise NotDense(f"{type(model).__name__} is not of the family")
    base: Any = model.base_model
    if len(base.layers) != len(forms):
        raise NotDense("some layers have no attention")
    rotary = base.rotary_emb
    if rotary.rope_type not in FIXED_ROTATIONS:
        raise NotDense(f"the rotation is of kind {rotary.rope_type}")
    output: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    owners: list[Any] = []
    layers = (structs.DenseLayer * len(forms))(
        *[_layer(layer, form, owners) for layer, form in zip(base.layers, forms, strict=True)]
    )
    query_size, kv_size, _ = base.layers[0].self_attn.q_proj.shared.sizes
    frequencies = rotary.inv_freq.detach().float().contiguous()
    embedding = base.embed_tokens.weight.detach()
    head_dim = 2 * len(frequencies)
    owners += [layers, frequencies, embedding]
    logits = _matrix(output, owners)
    described = structs.DenseModel(
        layers=ctypes.addressof(layers),
        embedding=embedding.data_ptr(),
        final_norm=_norm(base.norm, owners),
        frequencies=frequencies.data_ptr(),
        logits=logits,
        dtype=structs.DTYPES[str(embedding.dtype).removeprefix("torch.")],
        isa=best_isa(),
        num_layers=len(forms),
        hidden=embedding.shape[1],
        num_heads=query_size // head_dim,
        num_kv_heads=kv_size // head_dim,
        head_dim=head_dim,
        eps=base.norm.eps,
        scaling=forms[0].scaling,
        rotation_scale=rotary.attention_scaling,
    )
    _check_uniform(base, described, forms)
    return DenseWeights(described, logits.num_columns, owners)


def _layer(layer: Any, form: AttentionForm, owners: list[Any]) -> structs.DenseLayer:
    if form.softcap is not None or form.sinks is not None:
        raise NotDense("attention has a softcap or sinks")
    attention, mlp = layer.self_attn, layer.mlp
    heads = [attention.q_proj, attention.k_proj, attention.v_proj]
    if not all(isinstance(part, FusedPart) and part.shared is heads[0].shared for part in heads):
        raise NotDense("queries, keys and values are not one product")
    if [part.index for part in heads] != [0, 1, 2] or not isinstance(mlp, GatedMlp):
        raise NotDense("the MLP is not gated by silu")
    has_head_norms = hasattr(attention, "q_norm")
    return structs.DenseLayer(
        qkv=_matrix(heads[0].shared.linear, owners),
        output=_matrix(attention.o_proj, owners),
        gate_up=_packed(mlp.gate_up, owners),
        down=_packed(mlp.down, owners),
        input_norm=_norm(layer.input_layernorm, owners),
        mlp_norm=_norm(layer.post_attention_layernorm, owners),
        query_norm=_norm(attention.q_norm, owners) if has_head_norms else None,
        key_norm=_norm(attention.k_norm, owners) if has_head_norms else None,
        window=form.sliding_window or 0,
    )


def _check_uniform(base: Any, model: structs.DenseModel, forms: tuple[AttentionForm, ...]) -> None:
    """Whole panels everywhere, and one value for what the step takes once for all layers."""
    head_dim, heads, kv_heads = model.head_dim, model.num_heads, model.num_kv_heads
    library = native.library()
    assert library is not None, "the weights were packed"
    if not library.baton_has_head_dim(head_dim):
        raise NotDense(f"heads have {head_dim} dimensions")
    if model.hidden % PANEL_COLUMNS:
        raise NotDense(f"a hidden size of {model.hidden} is not a multiple of {PANEL_COLUMNS}")
    expected = (heads * head_dim, kv_heads * head_dim, kv_heads * head_dim)
    norms = [base.norm]
    for layer, form in zip(base.layers, forms, strict=True):
        attention = layer.self_attn
        head_norms = [attention.q_norm, attention.k_norm] if hasattr(attention, "q_norm") else []
        norms += [layer.input_layernorm, layer.post_attention_layernorm, *head_norms]
        if attention.q_proj.shared.sizes != expected or form.scaling != forms[0].scaling:
            raise NotDense("layers differ in their attention")
        if any(norm.size != head_dim for norm in head_norms):
            raise NotDense("queries are normed across heads")
    if any(norm.eps != base.norm.eps for norm in norms):
        raise NotDense("norms differ in their epsilon")


def _matrix(linear: Any, owners: list[Any]) -> structs.Matrix:
    if not isinstance(linear, PackedLinear):
        raise NotDense("a layer's weights are not packed")
    return _packed(linear.matrix, owners)


def _packed(matrix: PackedMatrix, owners: list[Any]) -> structs.Matrix:
    owners.append(matrix)
    return matrix.native


def _norm(norm: Any, owners: list[Any]) -> int:
    if not isinstance(norm, PackedNorm):
        raise NotDense("a norm is not an RMSNorm")
    owners.append(norm.scale)
    return norm.scale.data_ptr()

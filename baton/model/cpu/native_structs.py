"""The structures that Python and the compiled kernels share, field by field as in `csrc/`.

Addresses in them are plain integers: the caller keeps alive what they point to.
"""

import ctypes

from baton.model.tensors.kv_pool import KVPool

DTYPES = {"float32": 0, "bfloat16": 1}  # `Dtype` in csrc/attention.h, by the names of a KVSpec


class Layer(ctypes.Structure):
    """`Layer` in csrc/attention.h: where one layer's pages are."""

    _fields_ = (
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("block_stride_bytes", ctypes.c_int64),
        ("num_kv_heads", ctypes.c_int32),
        ("block_size", ctypes.c_int32),
        ("k_dim", ctypes.c_int32),
        ("v_dim", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
    )


class Step(ctypes.Structure):
    """`Step` in csrc/attention.h: which tokens belong to which sequence and block."""

    _fields_ = (
        ("query_starts", ctypes.c_void_p),
        ("context_lens", ctypes.c_void_p),
        ("block_tables", ctypes.c_void_p),
        ("table_stride", ctypes.c_int64),
        ("num_seqs", ctypes.c_int32),
        ("isa", ctypes.c_int32),
        ("is_fixed", ctypes.c_int32),
    )


class Form(ctypes.Structure):
    """`Form` in csrc/attention.h."""

    _fields_ = (
        ("scaling", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("window", ctypes.c_int32),
        ("sinks", ctypes.c_void_p),
    )


class Matrix(ctypes.Structure):
    """`Matrix` in csrc/panels.h: a packed weight."""

    _fields_ = (
        ("panels", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("num_columns", ctypes.c_int32),
        ("num_chunks", ctypes.c_int32),
    )


class DenseLayer(ctypes.Structure):
    """`DenseLayer` in csrc/dense_step.h."""

    _fields_ = (
        ("qkv", Matrix),
        ("output", Matrix),
        ("gate_up", Matrix),
        ("down", Matrix),
        ("input_norm", ctypes.c_void_p),
        ("mlp_norm", ctypes.c_void_p),
        ("query_norm", ctypes.c_void_p),
        ("key_norm", ctypes.c_void_p),
        ("window", ctypes.c_int32),
    )


class DenseModel(ctypes.Structure):
    """`DenseModel` in csrc/dense_step.h."""

    _fields_ = (
        ("layers", ctypes.c_void_p),
        ("embedding", ctypes.c_void_p),
        ("final_norm", ctypes.c_void_p),
        ("frequencies", ctypes.c_void_p),
        ("logits", Matrix),
        ("dtype", ctypes.c_int32),
        ("isa", ctypes.c_int32),
        ("num_layers", ctypes.c_int32),
        ("hidden", ctypes.c_int32),
        ("num_heads", ctypes.c_int32),
        ("num_kv_heads", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("eps", ctypes.c_float),
        ("scaling", ctypes.c_float),
        ("rotation_scale", ctypes.c_float),
    )


Reached = ctypes.CFUNCTYPE(None, ctypes.c_int32)


class DenseBatch(ctypes.Structure):
    """`DenseBatch` in csrc/dense_step.h."""

    _fields_ = (
        ("attention", Step),
        ("token_ids", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("logit_rows", ctypes.c_void_p),
        ("logits", ctypes.c_void_p),
        ("num_tokens", ctypes.c_int32),
        ("num_logit_rows", ctypes.c_int32),
        ("num_threads", ctypes.c_int32),
        ("marks", ctypes.c_void_p),
        ("num_marks", ctypes.c_int32),
        ("reached", Reached),
    )


def layers_of(pool: KVPool) -> list[Layer]:
    """The pages of all layers. The pool has to outlive them."""
    return [
        Layer(
            keys=keys.data_ptr(),
            values=values.data_ptr(),
            block_stride_bytes=pool.spec.row_bytes,
            num_kv_heads=spec.num_kv_heads,
            block_size=pool.spec.block_size,
            k_dim=spec.k_dim,
            v_dim=spec.v_dim,
            dtype=DTYPES[spec.dtype],
        )
        for spec, keys, values in zip(pool.spec.layers, pool.keys, pool.values, strict=True)
    ]

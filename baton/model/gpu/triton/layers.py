"""The kernels between a decoder layer's matrix products, as functions of tensors."""

import torch

from baton.model.gpu.triton.layer_kernels import (
    add_rms_norm_kernel,
    rotate_store_kernel,
    silu_mul_kernel,
)

_MAX_TILE = 4096
_TILE_HEADS = 8


def add_rms_norm(
    rows: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """RMSNorm of `rows` `[num_rows, size]`, or of their sum with `residual`, which it becomes."""
    output = torch.empty_like(rows)
    size = rows.shape[1]
    size_pad = 1 << (size - 1).bit_length()
    add_rms_norm_kernel[(len(rows),)](
        rows,
        rows if residual is None else residual,
        weight,
        output,
        size,
        eps,
        HAS_RESIDUAL=residual is not None,
        SIZE_PAD=size_pad,
        num_warps=min(16, max(4, size_pad // 512)),
    )
    return output


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of `[num_rows, 2 * size]`, gates first -> `[num_rows, size]`."""
    num_rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    output = gate_up.new_empty(num_rows, size)
    tile = min(_MAX_TILE, 1 << (size - 1).bit_length())
    silu_mul_kernel[(num_rows, -(-size // tile))](
        gate_up, output, size, SIZE_TILE=tile, num_warps=4
    )
    return output


def rotate_and_store(
    qkv: torch.Tensor,
    rotation: tuple[torch.Tensor, torch.Tensor],
    pages: tuple[torch.Tensor, torch.Tensor],
    slots: torch.Tensor,
    norms: torch.Tensor | None,
    eps: float = 0.0,
) -> torch.Tensor:
    """Rotate queries and keys of `qkv` `[num_tokens, heads * dim]`, put keys and values in slots.

    `rotation` is cos and sin `[num_tokens, dim]`, `pages` one layer of a KVPool, `norms`
    `[2, dim]` the weights of RMSNorms over each query and each key head. Returns the queries
    `[num_tokens, num_heads, dim]`.
    """
    keys, values = pages
    num_tokens, num_kv_heads, dim = qkv.shape[0], keys.shape[1], keys.shape[3]
    num_heads = qkv.shape[1] // dim - 2 * num_kv_heads
    query = qkv.new_empty(num_tokens, num_heads, dim)
    num_tiles = -(-(num_heads + 2 * num_kv_heads) // _TILE_HEADS)
    rotate_store_kernel[(num_tokens, num_tiles)](
        qkv,
        query,
        keys,
        values,
        slots,
        *rotation,
        qkv if norms is None else norms,
        eps,
        keys.stride(0),
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        DIM=dim,
        HALF_PAD=1 << (dim // 2 - 1).bit_length(),
        BLOCK_SIZE=keys.shape[2],
        HAS_NORM=norms is not None,
        TILE_HEADS=_TILE_HEADS,
        num_warps=4,
    )
    return query

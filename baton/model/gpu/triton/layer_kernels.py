"""Triton kernels between the matrix products of a decoder layer: each replaces several of torch's.

Rows are dense; numbers are computed in float32 and rounded where transformers' modules round, so
that results differ from theirs as little as the order of sums allows.
"""

import triton
import triton.language as tl


@triton.jit
def add_rms_norm_kernel(
    rows_ptr, residual_ptr, weight_ptr, output_ptr, size, eps,
    HAS_RESIDUAL: tl.constexpr, SIZE_PAD: tl.constexpr,
):  # fmt: skip
    """Program (row): residual += row, in place; output = residual / rms(residual) * weight.

    Without a residual the row itself is normalised.
    """
    start = tl.program_id(0).to(tl.int64) * size
    offsets = tl.arange(0, SIZE_PAD)
    mask = offsets < size
    row = tl.load(rows_ptr + start + offsets, mask=mask, other=0.0)
    dtype = row.dtype
    row = row.to(tl.float32)
    if HAS_RESIDUAL:
        row += tl.load(residual_ptr + start + offsets, mask=mask, other=0.0).to(tl.float32)
        row = row.to(dtype)
        tl.store(residual_ptr + start + offsets, row, mask=mask)
        row = row.to(tl.float32)
    scale = tl.rsqrt(tl.sum(row * row, 0) / size + eps)
    weight = tl.load(weight_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    normed = (row * scale).to(dtype).to(tl.float32) * weight
    tl.store(output_ptr + start + offsets, normed.to(dtype), mask=mask)


@triton.jit
def silu_mul_kernel(gate_up_ptr, output_ptr, size, SIZE_TILE: tl.constexpr):
    """Program (row, tile): output = silu(gate) * up, where a row is gate and then up."""
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.program_id(1) * SIZE_TILE + tl.arange(0, SIZE_TILE)
    mask = offsets < size
    gate = tl.load(gate_up_ptr + row * 2 * size + offsets, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * 2 * size + size + offsets, mask=mask, other=0.0)
    result = gate * tl.sigmoid(gate) * up.to(tl.float32)
    tl.store(output_ptr + row * size + offsets, result.to(up.dtype), mask=mask)


@triton.jit
def rotate_store_kernel(
    qkv_ptr, query_ptr, key_pool_ptr, value_pool_ptr, slots_ptr, cos_ptr, sin_ptr,
    norms_ptr, eps, pool_stride_block,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, DIM: tl.constexpr,
    HALF_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr, HAS_NORM: tl.constexpr,
    TILE_HEADS: tl.constexpr,
):  # fmt: skip
    """Program (token, tile of heads): queries and keys are rotated; keys and values are stored.

    A row of `qkv` is the token's query heads, key heads and value heads, of DIM numbers each; `cos`
    and `sin` are `[num_tokens, DIM]`, whose two halves are equal; `norms` are the weights of the
    queries' norm and then of the keys', which come before the rotation. A slot below 0 is none.
    """
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * TILE_HEADS + tl.arange(0, TILE_HEADS)
    HALF: tl.constexpr = DIM // 2
    halves = tl.arange(0, HALF_PAD)
    is_query = heads < NUM_HEADS
    is_value = heads >= NUM_HEADS + NUM_KV_HEADS
    mask = (heads < NUM_HEADS + 2 * NUM_KV_HEADS)[:, None] & (halves < HALF)[None, :]
    row_ptr = qkv_ptr + (token * (NUM_HEADS + 2 * NUM_KV_HEADS) + heads)[:, None] * DIM
    first = tl.load(row_ptr + halves[None, :], mask=mask, other=0.0)
    second = tl.load(row_ptr + HALF + halves[None, :], mask=mask, other=0.0)
    norm_ptr = norms_ptr + tl.where(is_query, 0, DIM)[:, None] + halves[None, :]
    rotated_first, rotated_second = _normed_and_rotated(
        first, second, token, halves, mask, cos_ptr, sin_ptr, norm_ptr, eps, DIM, HAS_NORM
    )
    first = tl.where(is_value[:, None], first, rotated_first)
    second = tl.where(is_value[:, None], second, rotated_second)
    to = query_ptr + (token * NUM_HEADS + heads)[:, None] * DIM + halves[None, :]
    tl.store(to, first, mask=mask & is_query[:, None])
    tl.store(to + HALF, second, mask=mask & is_query[:, None])
    slot = tl.load(slots_ptr + token).to(tl.int64)
    kv_heads = tl.where(is_value, heads - NUM_KV_HEADS, heads) - NUM_HEADS
    places = (kv_heads * BLOCK_SIZE + slot % BLOCK_SIZE) * DIM
    to = slot // BLOCK_SIZE * pool_stride_block + places[:, None] + halves[None, :]
    is_key = mask & (slot >= 0) & ~(is_query | is_value)[:, None]
    tl.store(key_pool_ptr + to, first, mask=is_key)
    tl.store(key_pool_ptr + to + HALF, second, mask=is_key)
    is_stored = mask & (slot >= 0) & is_value[:, None]
    tl.store(value_pool_ptr + to, first, mask=is_stored)
    tl.store(value_pool_ptr + to + HALF, second, mask=is_stored)


@triton.jit
def _normed_and_rotated(
    first, second, token, halves, mask, cos_ptr, sin_ptr, norm_ptr, eps,
    DIM: tl.constexpr, HAS_NORM: tl.constexpr,
):  # fmt: skip
    """The two halves of heads, after their norm (if they have one) and their rotation."""
    dtype = first.dtype
    HALF: tl.constexpr = DIM // 2
    first = first.to(tl.float32)
    second = second.to(tl.float32)
    if HAS_NORM:
        scale = tl.rsqrt((tl.sum(first * first, 1) + tl.sum(second * second, 1)) / DIM + eps)
        first_weight = tl.load(norm_ptr, mask=mask, other=0.0).to(tl.float32)
        second_weight = tl.load(norm_ptr + HALF, mask=mask, other=0.0).to(tl.float32)
        first = (first * scale[:, None]).to(dtype).to(tl.float32) * first_weight
        first = first.to(dtype).to(tl.float32)
        second = (second * scale[:, None]).to(dtype).to(tl.float32) * second_weight
        second = second.to(dtype).to(tl.float32)
    is_half = halves < HALF
    cos = tl.load(cos_ptr + token * DIM + halves, mask=is_half, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(sin_ptr + token * DIM + halves, mask=is_half, other=0.0).to(tl.float32)[None, :]
    return (first * cos - second * sin).to(dtype), (second * cos + first * sin).to(dtype)

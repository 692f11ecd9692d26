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
):  # fmt: skip
    """Program (token, head): queries are normed and rotated, keys too and stored, values stored.

    A row of `qkv` is the token's query heads, key heads and value heads, of DIM numbers each; `cos`
    and `sin` are `[num_tokens, DIM]`, whose two halves are equal; `norms` are the weights of the
    queries' norm and then of the keys'. A slot below 0 is none.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    HALF: tl.constexpr = DIM // 2
    halves = tl.arange(0, HALF_PAD)
    mask = halves < HALF
    row_ptr = qkv_ptr + (token * (NUM_HEADS + 2 * NUM_KV_HEADS) + head) * DIM
    first = tl.load(row_ptr + halves, mask=mask, other=0.0)
    second = tl.load(row_ptr + HALF + halves, mask=mask, other=0.0)
    if head < NUM_HEADS + NUM_KV_HEADS:
        first, second = _normed_and_rotated(
            first, second, token, halves, mask, cos_ptr, sin_ptr,
            norms_ptr + tl.where(head < NUM_HEADS, 0, DIM), eps, DIM, HAS_NORM,
        )  # fmt: skip
    if head < NUM_HEADS:
        to = query_ptr + (token * NUM_HEADS + head) * DIM
        tl.store(to + halves, first, mask=mask)
        tl.store(to + HALF + halves, second, mask=mask)
    else:
        slot = tl.load(slots_ptr + token).to(tl.int64)
        kv_head = (head - NUM_HEADS) % NUM_KV_HEADS
        place = slot // BLOCK_SIZE * pool_stride_block
        place += (kv_head * BLOCK_SIZE + slot % BLOCK_SIZE) * DIM
        is_stored = mask & (slot >= 0)
        if head < NUM_HEADS + NUM_KV_HEADS:
            tl.store(key_pool_ptr + place + halves, first, mask=is_stored)
            tl.store(key_pool_ptr + place + HALF + halves, second, mask=is_stored)
        else:
            tl.store(value_pool_ptr + place + halves, first, mask=is_stored)
            tl.store(value_pool_ptr + place + HALF + halves, second, mask=is_stored)


@triton.jit
def _normed_and_rotated(
    first, second, token, halves, mask, cos_ptr, sin_ptr, norm_ptr, eps,
    DIM: tl.constexpr, HAS_NORM: tl.constexpr,
):  # fmt: skip
    """The two halves of one head, after its norm (if it has one) and its rotation."""
    dtype = first.dtype
    HALF: tl.constexpr = DIM // 2
    first = first.to(tl.float32)
    second = second.to(tl.float32)
    if HAS_NORM:
        scale = tl.rsqrt((tl.sum(first * first, 0) + tl.sum(second * second, 0)) / DIM + eps)
        first_weight = tl.load(norm_ptr + halves, mask=mask, other=0.0).to(tl.float32)
        second_weight = tl.load(norm_ptr + HALF + halves, mask=mask, other=0.0).to(tl.float32)
        first = ((first * scale).to(dtype).to(tl.float32) * first_weight).to(dtype).to(tl.float32)
        second = (second * scale).to(dtype).to(tl.float32) * second_weight
        second = second.to(dtype).to(tl.float32)
    cos = tl.load(cos_ptr + token * DIM + halves, mask=mask, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + token * DIM + halves, mask=mask, other=0.0).to(tl.float32)
    return (first * cos - second * sin).to(dtype), (second * cos + first * sin).to(dtype)

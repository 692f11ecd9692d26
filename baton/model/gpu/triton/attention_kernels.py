"""Triton kernels of paged attention: store K and V, attend over blocks, join split results.

One attention kernel serves both decode and prefill: a program owns one KV head and a tile of rows,
where a row is one query of one head of the group that shares the KV head, so that the matrix units
are used in decode too. `SEGMENTS` > 1 cuts the keys of one tile into that many parts, which run at
the same time and are joined by `join_segments_kernel`; how they are cut depends on the sequence
alone, so a result never depends on batch mates. Softmax is in float32 and base 2.

The kernels know pointers, strides and sizes; what a step is, is told in `attention_backend.py`. The
way to find a tile's sequence follows vLLM's `triton_unified_attention` (Apache-2.0).
"""

import triton
import triton.language as tl

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def store_kv_kernel(
    key_ptr, value_ptr, slots_ptr, key_pool_ptr, value_pool_ptr,
    key_stride_head, key_stride_token, value_stride_head, value_stride_token, pool_stride_block,
    BLOCK_SIZE: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr,
    K_PAD: tl.constexpr, V_PAD: tl.constexpr,
):  # fmt: skip
    """Program (token, KV head): copy K and V of a token into its slot; a slot below 0 is none."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    if slot >= 0:
        start = slot // BLOCK_SIZE * pool_stride_block
        row = head * BLOCK_SIZE + slot % BLOCK_SIZE
        k_dims = tl.arange(0, K_PAD)
        v_dims = tl.arange(0, V_PAD)
        key_from = key_ptr + head * key_stride_head + token * key_stride_token
        value_from = value_ptr + head * value_stride_head + token * value_stride_token
        key = tl.load(key_from + k_dims, mask=k_dims < K_DIM)
        value = tl.load(value_from + v_dims, mask=v_dims < V_DIM)
        tl.store(key_pool_ptr + start + row * K_DIM + k_dims, key, mask=k_dims < K_DIM)
        tl.store(value_pool_ptr + start + row * V_DIM + v_dims, value, mask=v_dims < V_DIM)


@triton.jit
def _find_tile(query_starts_ptr, num_seqs, tile, TILE_QUERIES: tl.constexpr):
    """(sequence, its first query in the tile); tiles of sequence s begin at start(s) / size + s."""
    low = 0
    high = num_seqs
    while low < high:
        middle = (low + high) // 2
        first_tile = tl.load(query_starts_ptr + middle) // TILE_QUERIES + middle
        if first_tile <= tile:
            low = middle + 1
        else:
            high = middle
    seq = low - 1
    first_tile = tl.load(query_starts_ptr + seq) // TILE_QUERIES + seq
    return seq, (tile - first_tile) * TILE_QUERIES


@triton.jit
def _key_range(
    context_len, first_position, segment, window, HAS_WINDOW: tl.constexpr,
    TILE_QUERIES: tl.constexpr, TILE_KEYS: tl.constexpr,
    SEGMENTS: tl.constexpr, MIN_SEGMENT_TILES: tl.constexpr,
):  # fmt: skip
    """[first, end) of the keys that this segment of a tile reads; depends on its sequence alone."""
    end = tl.minimum(context_len, first_position + TILE_QUERIES)
    first = 0
    if HAS_WINDOW:
        first = tl.maximum(first_position - window + 1, 0) // TILE_KEYS * TILE_KEYS
    if SEGMENTS > 1:
        num_tiles = (end - first + TILE_KEYS - 1) // TILE_KEYS
        segment_tiles = tl.maximum((num_tiles + SEGMENTS - 1) // SEGMENTS, MIN_SEGMENT_TILES)
        first += segment * segment_tiles * TILE_KEYS
        end = tl.minimum(end, first + segment_tiles * TILE_KEYS)
    return first, end


@triton.jit
def _before_keys(
    sinks_ptr, heads, is_row, segment, HAS_SINKS: tl.constexpr, TILE_ROWS: tl.constexpr
):
    """(largest score, sum of weights) of each row before its first key: the sink counts once."""
    largest = tl.full([TILE_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([TILE_ROWS], tl.float32)
    if HAS_SINKS:
        sinks = tl.load(sinks_ptr + heads, mask=is_row, other=0.0).to(tl.float32) * _LOG2_E
        largest = tl.where(segment == 0, sinks, largest)
        total = tl.where(segment == 0, 1.0, total)
    return largest, total


@triton.jit
def _scores(
    query, key, keys, is_key, positions, scaling, softcap, window,
    HAS_SOFTCAP: tl.constexpr, HAS_WINDOW: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Scores of a tile in base 2, -inf where a query does not see a key."""
    scores = tl.dot(query, key, input_precision=PRECISION) * scaling
    if HAS_SOFTCAP:
        # softcap * tanh(scores / softcap)
        scores = softcap * (2.0 * tl.sigmoid(2.0 * scores / softcap) - 1.0)
    is_seen = is_key[None, :] & (keys[None, :] <= positions[:, None])
    if HAS_WINDOW:
        is_seen &= keys[None, :] > positions[:, None] - window
    return tl.where(is_seen, scores * _LOG2_E, float("-inf"))


@triton.jit
def _attend_keys(
    query, positions, largest, total, first_key, end_key,
    key_ptr, value_ptr, table_ptr, pool_stride_block, scaling, softcap, window,
    BLOCK_SIZE: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr,
    K_PAD: tl.constexpr, V_PAD: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_KEYS: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr, HAS_WINDOW: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sum values under softmax weights, tile by tile: (sum, largest score, sum of the weights).

    `key_ptr` and `value_ptr` are one head's first page; it is BLOCK_SIZE rows, densely packed.
    """
    k_dims = tl.arange(0, K_PAD)
    v_dims = tl.arange(0, V_PAD)
    result = tl.zeros([TILE_ROWS, V_PAD], tl.float32)
    for tile_key in range(first_key, end_key, TILE_KEYS):
        keys = tile_key + tl.arange(0, TILE_KEYS)
        is_key = keys < end_key
        blocks = tl.load(table_ptr + keys // BLOCK_SIZE, mask=is_key, other=0).to(tl.int64)
        starts = blocks * pool_stride_block
        offsets = keys % BLOCK_SIZE
        key = tl.load(
            key_ptr + (starts + offsets * K_DIM)[None, :] + k_dims[:, None],
            mask=is_key[None, :] & (k_dims < K_DIM)[:, None],
            other=0.0,
        )
        value = tl.load(
            value_ptr + (starts + offsets * V_DIM)[:, None] + v_dims[None, :],
            mask=is_key[:, None] & (v_dims < V_DIM)[None, :],
            other=0.0,
        )
        scores = _scores(
            query, key, keys, is_key, positions, scaling, softcap, window,
            HAS_SOFTCAP, HAS_WINDOW, PRECISION,
        )  # fmt: skip
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        # A row that has seen nothing yet: any finite number keeps its weights at 0.
        base = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        weights = tl.exp2(scores - base[:, None])
        decay = tl.exp2(largest - base)
        total = total * decay + tl.sum(weights, 1)
        result = result * decay[:, None]
        result += tl.dot(weights.to(value.dtype), value, input_precision=PRECISION)
        largest = new_largest
    return result, largest, total


@triton.jit
def _store_rows(to_ptr, places, is_row, rows, DIM: tl.constexpr, PAD: tl.constexpr):
    dims = tl.arange(0, PAD)
    to = to_ptr + places[:, None] + dims[None, :]
    tl.store(to, rows.to(to_ptr.dtype.element_ty), mask=is_row[:, None] & (dims < DIM)[None, :])


@triton.jit(do_not_specialize=["num_seqs", "window"])
def paged_attention_kernel(
    query_ptr, key_pool_ptr, value_pool_ptr, sinks_ptr, output_ptr, partials_ptr, stats_ptr,
    query_starts_ptr, context_lens_ptr, table_starts_ptr, tables_ptr, num_seqs,
    query_stride_head, query_stride_token, output_stride_token, pool_stride_block,
    scaling, softcap, window,
    GROUP: tl.constexpr, BLOCK_SIZE: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr,
    K_PAD: tl.constexpr, V_PAD: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_KEYS: tl.constexpr,
    SHORT_QUERIES: tl.constexpr, SEGMENTS: tl.constexpr, MIN_SEGMENT_TILES: tl.constexpr,
    HAS_SINKS: tl.constexpr, HAS_SOFTCAP: tl.constexpr, HAS_WINDOW: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Program (tile, KV head, segment): rows of one tile over the keys of one segment.

    With segments a tile is a whole short sequence (at most SHORT_QUERIES queries) and the result is
    partial; without, tiles are found in the flat batch, and short sequences are left out.
    """
    seq = tl.program_id(0)
    kv_head = tl.program_id(1)
    segment = tl.program_id(2)
    TILE_QUERIES: tl.constexpr = TILE_ROWS // GROUP
    first_query = 0
    if SEGMENTS == 1:
        seq, first_query = _find_tile(query_starts_ptr, num_seqs, seq, TILE_QUERIES)
    start = tl.load(query_starts_ptr + seq)
    num_queries = tl.load(query_starts_ptr + seq + 1) - start
    if ((num_queries <= SHORT_QUERIES) != (SEGMENTS > 1)) | (first_query >= num_queries):
        return
    rows = tl.arange(0, TILE_ROWS)
    queries = first_query + rows // GROUP
    heads = kv_head * GROUP + rows % GROUP
    is_row = (rows < TILE_QUERIES * GROUP) & (queries < num_queries)
    tokens = (start + queries).to(tl.int64)
    k_dims = tl.arange(0, K_PAD)
    query_from = query_ptr + heads * query_stride_head + tokens * query_stride_token
    is_query = is_row[:, None] & (k_dims < K_DIM)
    query = tl.load(query_from[:, None] + k_dims, mask=is_query, other=0.0)
    largest, total = _before_keys(sinks_ptr, heads, is_row, segment, HAS_SINKS, TILE_ROWS)
    num_old = tl.load(context_lens_ptr + seq) - num_queries
    first_key, end_key = _key_range(
        num_old + num_queries, num_old + first_query, segment, window, HAS_WINDOW,
        TILE_QUERIES, TILE_KEYS, SEGMENTS, MIN_SEGMENT_TILES,
    )  # fmt: skip
    result, largest, total = _attend_keys(
        query, num_old + queries, largest, total, first_key, end_key,
        key_pool_ptr + kv_head * BLOCK_SIZE * K_DIM, value_pool_ptr + kv_head * BLOCK_SIZE * V_DIM,
        tables_ptr + tl.load(table_starts_ptr + seq), pool_stride_block, scaling, softcap, window,
        BLOCK_SIZE, K_DIM, V_DIM, K_PAD, V_PAD, TILE_ROWS, TILE_KEYS,
        HAS_SOFTCAP, HAS_WINDOW, PRECISION,
    )  # fmt: skip
    if SEGMENTS > 1:
        row_places = (seq * tl.num_programs(1) + kv_head) * (SHORT_QUERIES * GROUP) + rows
        places = row_places.to(tl.int64) * SEGMENTS + segment
        has_seen = is_row & ((first_key < end_key) | (segment == 0))
        tl.store(stats_ptr + places * 2, largest, mask=is_row)
        tl.store(stats_ptr + places * 2 + 1, total, mask=is_row)
        _store_rows(partials_ptr, places * V_PAD, has_seen, result, V_PAD, V_PAD)
    else:
        places = tokens * output_stride_token + heads * V_DIM
        result = result / tl.where(total > 0.0, total, 1.0)[:, None]
        _store_rows(output_ptr, places, is_row, result, V_DIM, V_PAD)


@triton.jit
def join_segments_kernel(
    output_ptr, partials_ptr, stats_ptr, query_starts_ptr, output_stride_token,
    GROUP: tl.constexpr, V_DIM: tl.constexpr, V_PAD: tl.constexpr,
    SHORT_QUERIES: tl.constexpr, SEGMENTS: tl.constexpr,
):  # fmt: skip
    """Program (sequence, KV head, row): the output of one row from its segments' partial ones."""
    seq = tl.program_id(0)
    kv_head = tl.program_id(1)
    row = tl.program_id(2)
    start = tl.load(query_starts_ptr + seq)
    num_queries = tl.load(query_starts_ptr + seq + 1) - start
    if num_queries > SHORT_QUERIES:
        return
    if row >= num_queries * GROUP:
        return
    segments = tl.arange(0, SEGMENTS)
    v_dims = tl.arange(0, V_PAD)
    row_place = (seq * tl.num_programs(1) + kv_head) * (SHORT_QUERIES * GROUP) + row
    place = row_place.to(tl.int64) * SEGMENTS + segments
    largest = tl.load(stats_ptr + place * 2)
    totals = tl.load(stats_ptr + place * 2 + 1)
    # Segments without keys have written no partial result, except the first one.
    has_seen = largest > float("-inf")
    base = tl.max(largest, 0)
    base = tl.where(base == float("-inf"), 0.0, base)
    shares = tl.exp2(largest - base)
    total = tl.sum(shares * totals, 0)
    partials = tl.load(
        partials_ptr + place[:, None] * V_PAD + v_dims[None, :],
        mask=has_seen[:, None],
        other=0.0,
    )
    result = tl.sum(partials * shares[:, None], 0) / tl.where(total > 0.0, total, 1.0)
    token = (start + row // GROUP).to(tl.int64)
    to = output_ptr + token * output_stride_token + (kv_head * GROUP + row % GROUP) * V_DIM
    tl.store(to + v_dims, result.to(output_ptr.dtype.element_ty), mask=v_dims < V_DIM)

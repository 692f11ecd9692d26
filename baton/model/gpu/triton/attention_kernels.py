"""Triton kernels of paged attention: store K and V, attend over blocks, join split results.

One attention kernel serves both decode and prefill: a program owns one KV head and a tile of rows,
where a row is one query of one head of the group that shares the KV head, so that the matrix units
are used in decode too. With `IS_SPLIT` a program has the keys of one segment of a sequence; what
several segments of one sequence give is joined by `join_segments_kernel`. Softmax is in float32 and
base 2. Tiles of keys that all rows see, which are most, are computed without any masks.

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
    """(sequence, its first query in the tile); tiles of sequence s begin at start(s) / size + s.

    The last come first: they see most keys.
    """
    tile = tl.num_programs(1) - 1 - tile
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
def _keys_of_program(
    segment_starts_ptr, segment_keys_ptr, seq, place, context_len, first_position, window,
    IS_SPLIT: tl.constexpr, HAS_WINDOW: tl.constexpr,
    TILE_QUERIES: tl.constexpr, TILE_KEYS: tl.constexpr,
):  # fmt: skip
    """(segment, segments of its sequence, first, end) of the keys that a tile sees, and has."""
    first_key = 0
    if HAS_WINDOW:
        first_key = tl.maximum(first_position - window + 1, 0) // TILE_KEYS * TILE_KEYS
    end_key = tl.minimum(context_len, first_position + TILE_QUERIES)
    segment = 0
    num_segments = 1
    if IS_SPLIT:
        first_segment = tl.load(segment_starts_ptr + seq)
        num_segments = tl.load(segment_starts_ptr + seq + 1) - first_segment
        segment = place - first_segment
        num_keys = tl.load(segment_keys_ptr)
        first_key = tl.maximum(first_key, segment * num_keys)
        end_key = tl.minimum(end_key, (segment + 1) * num_keys)
    return segment, num_segments, first_key, end_key


@triton.jit
def _load_rows(row_ptrs, is_row, DIM: tl.constexpr, PAD: tl.constexpr):
    dims = tl.arange(0, PAD)
    is_number = is_row[:, None] & (dims < DIM)
    return tl.load(row_ptrs[:, None] + dims, mask=is_number, other=0.0)


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
def _load_tile(
    head_ptr, starts, offsets, is_key, IS_FULL: tl.constexpr,
    DIM: tl.constexpr, PAD: tl.constexpr, IS_TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """Keys or values of a tile `[keys, PAD]`, or transposed; 0 beyond keys and dimensions."""
    dims = tl.arange(0, PAD)
    if IS_TRANSPOSED:
        pointers = head_ptr + (starts + offsets * DIM)[None, :] + dims[:, None]
        mask = is_key[None, :] & (dims < DIM)[:, None]
    else:
        pointers = head_ptr + (starts + offsets * DIM)[:, None] + dims[None, :]
        mask = is_key[:, None] & (dims < DIM)[None, :]
    if not (IS_FULL and DIM == PAD):
        return tl.load(pointers, mask=mask, other=0.0)
    return tl.load(pointers)


@triton.jit
def _attend_tiles(
    result, largest, total, query, positions, first_key, end_key,
    key_ptr, value_ptr, table_ptr, pool_stride_block, scaling, softcap, window,
    BLOCK_SIZE: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr,
    K_PAD: tl.constexpr, V_PAD: tl.constexpr, TILE_KEYS: tl.constexpr, IS_FULL: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr, HAS_WINDOW: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add values under softmax weights, tile by tile: (sum, largest score, sum of the weights).

    `key_ptr` and `value_ptr` are one head's first page; it is BLOCK_SIZE rows, densely packed.
    With IS_FULL all rows see all keys, of which there are whole tiles.
    """
    # Scores are in base 2 and scaled where they are used, in one operation with what follows.
    scale = scaling * _LOG2_E
    if HAS_SOFTCAP:
        scale = softcap * _LOG2_E
    for tile_key in range(first_key, end_key, TILE_KEYS):
        keys = tile_key + tl.arange(0, TILE_KEYS)
        is_key = keys < end_key
        if IS_FULL:
            blocks = tl.load(table_ptr + keys // BLOCK_SIZE)
        else:
            blocks = tl.load(table_ptr + keys // BLOCK_SIZE, mask=is_key, other=0)
        starts = blocks.to(tl.int64) * pool_stride_block
        offsets = keys % BLOCK_SIZE
        key = _load_tile(key_ptr, starts, offsets, is_key, IS_FULL, K_DIM, K_PAD, True)
        value = _load_tile(value_ptr, starts, offsets, is_key, IS_FULL, V_DIM, V_PAD, False)
        scores = tl.dot(query, key, input_precision=PRECISION)
        if HAS_SOFTCAP:
            # tanh(scores / softcap)
            scores = 2.0 * tl.sigmoid(2.0 * scaling / softcap * scores) - 1.0
        if not IS_FULL:
            is_seen = is_key[None, :] & (keys[None, :] <= positions[:, None])
            if HAS_WINDOW:
                is_seen &= keys[None, :] > positions[:, None] - window
            scores = tl.where(is_seen, scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1) * scale)
        # A row that has seen nothing yet: any finite number keeps its weights at 0.
        base = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        weights = tl.exp2(scores * scale - base[:, None])
        decay = tl.exp2(largest - base)
        total = total * decay + tl.sum(weights, 1)
        result = result * decay[:, None]
        result += tl.dot(weights.to(value.dtype), value, input_precision=PRECISION)
        largest = new_largest
    return result, largest, total


@triton.jit
def _attend_keys(
    largest, total, query, positions, first_position, first_key, end_key,
    key_ptr, value_ptr, table_ptr, pool_stride_block, scaling, softcap, window,
    BLOCK_SIZE: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr,
    K_PAD: tl.constexpr, V_PAD: tl.constexpr, TILE_ROWS: tl.constexpr,
    TILE_QUERIES: tl.constexpr, TILE_KEYS: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr, HAS_WINDOW: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """As _attend_tiles, over keys that not all rows see: those between them are without masks."""
    result = tl.zeros([TILE_ROWS, V_PAD], tl.float32)
    first_full = first_key
    if HAS_WINDOW:
        # The last query sees the fewest of the oldest keys.
        unseen = tl.maximum(first_position + TILE_QUERIES - window - first_key, 0)
        first_full = first_key + (unseen + TILE_KEYS - 1) // TILE_KEYS * TILE_KEYS
        result, largest, total = _attend_tiles(
            result, largest, total, query, positions, first_key, tl.minimum(first_full, end_key),
            key_ptr, value_ptr, table_ptr, pool_stride_block, scaling, softcap, window,
            BLOCK_SIZE, K_DIM, V_DIM, K_PAD, V_PAD, TILE_KEYS, False,
            HAS_SOFTCAP, HAS_WINDOW, PRECISION,
        )  # fmt: skip
    num_full = tl.maximum(tl.minimum(end_key, first_position + 1) - first_full, 0) // TILE_KEYS
    end_full = first_full + num_full * TILE_KEYS
    result, largest, total = _attend_tiles(
        result, largest, total, query, positions, first_full, end_full,
        key_ptr, value_ptr, table_ptr, pool_stride_block, scaling, softcap, window,
        BLOCK_SIZE, K_DIM, V_DIM, K_PAD, V_PAD, TILE_KEYS, True,
        HAS_SOFTCAP, HAS_WINDOW, PRECISION,
    )  # fmt: skip
    return _attend_tiles(
        result, largest, total, query, positions, end_full, end_key,
        key_ptr, value_ptr, table_ptr, pool_stride_block, scaling, softcap, window,
        BLOCK_SIZE, K_DIM, V_DIM, K_PAD, V_PAD, TILE_KEYS, False,
        HAS_SOFTCAP, HAS_WINDOW, PRECISION,
    )  # fmt: skip


@triton.jit
def _store_rows(to_ptr, places, is_row, rows, DIM: tl.constexpr, PAD: tl.constexpr):
    dims = tl.arange(0, PAD)
    to = to_ptr + places[:, None] + dims[None, :]
    tl.store(to, rows.to(to_ptr.dtype.element_ty), mask=is_row[:, None] & (dims < DIM)[None, :])


@triton.jit
def _store_partial(
    partials_ptr, stats_ptr, row_places, is_row, has_keys, result, largest, total,
    PAD: tl.constexpr,
):  # fmt: skip
    """What the rows have of one segment; without keys that is their statistics alone."""
    places = row_places.to(tl.int64)
    tl.store(stats_ptr + places * 2, largest, mask=is_row)
    tl.store(stats_ptr + places * 2 + 1, total, mask=is_row)
    _store_rows(partials_ptr, places * PAD, is_row & has_keys, result, PAD, PAD)


@triton.jit(do_not_specialize=["num_seqs", "window"])
def paged_attention_kernel(
    query_ptr, key_pool_ptr, value_pool_ptr, sinks_ptr, output_ptr, partials_ptr, stats_ptr,
    query_starts_ptr, context_lens_ptr, table_starts_ptr, tables_ptr,
    segment_starts_ptr, segment_seqs_ptr, segment_keys_ptr, num_seqs,
    query_stride_head, query_stride_token, output_stride_token, pool_stride_block,
    scaling, softcap, window,
    GROUP: tl.constexpr, BLOCK_SIZE: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr,
    K_PAD: tl.constexpr, V_PAD: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_KEYS: tl.constexpr,
    SHORT_QUERIES: tl.constexpr, IS_SPLIT: tl.constexpr, HAS_SINKS: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr, HAS_WINDOW: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Program (KV head, segment or tile): rows of one tile over its keys, or those of a segment.

    Split tiles are whole short sequences; others are found in the flat batch, the longest first.
    """
    kv_head = tl.program_id(0)
    place = tl.program_id(1)
    TILE_QUERIES: tl.constexpr = TILE_ROWS // GROUP
    first_query = 0
    if IS_SPLIT:
        seq = tl.load(segment_seqs_ptr + place)
        if seq < 0:
            return
    else:
        seq, first_query = _find_tile(query_starts_ptr, num_seqs, place, TILE_QUERIES)
    start = tl.load(query_starts_ptr + seq)
    num_queries = tl.load(query_starts_ptr + seq + 1) - start
    if ((num_queries <= SHORT_QUERIES) != IS_SPLIT) | (first_query >= num_queries):
        return
    rows = tl.arange(0, TILE_ROWS)
    queries = first_query + rows // GROUP
    heads = kv_head * GROUP + rows % GROUP
    is_row = (rows < TILE_QUERIES * GROUP) & (queries < num_queries)
    tokens = (start + queries).to(tl.int64)
    query_from = query_ptr + heads * query_stride_head + tokens * query_stride_token
    query = _load_rows(query_from, is_row, K_DIM, K_PAD)
    num_old = tl.load(context_lens_ptr + seq) - num_queries
    first_position = num_old + first_query
    segment, num_segments, first_key, end_key = _keys_of_program(
        segment_starts_ptr, segment_keys_ptr, seq, place, num_old + num_queries, first_position,
        window, IS_SPLIT, HAS_WINDOW, TILE_QUERIES, TILE_KEYS,
    )  # fmt: skip
    largest, total = _before_keys(sinks_ptr, heads, is_row, segment, HAS_SINKS, TILE_ROWS)
    result, largest, total = _attend_keys(
        largest, total, query, num_old + queries, first_position, first_key, end_key,
        key_pool_ptr + kv_head * BLOCK_SIZE * K_DIM, value_pool_ptr + kv_head * BLOCK_SIZE * V_DIM,
        tables_ptr + tl.load(table_starts_ptr + seq), pool_stride_block, scaling, softcap, window,
        BLOCK_SIZE, K_DIM, V_DIM, K_PAD, V_PAD, TILE_ROWS, TILE_QUERIES, TILE_KEYS,
        HAS_SOFTCAP, HAS_WINDOW, PRECISION,
    )  # fmt: skip
    if num_segments > 1:
        row_places = (place * tl.num_programs(0) + kv_head) * (SHORT_QUERIES * GROUP) + rows
        has_keys = (first_key < end_key) | (segment == 0)
        _store_partial(
            partials_ptr, stats_ptr, row_places, is_row, has_keys, result, largest, total, V_PAD
        )
    else:
        places = tokens * output_stride_token + heads * V_DIM
        result = result / tl.where(total > 0.0, total, 1.0)[:, None]
        _store_rows(output_ptr, places, is_row, result, V_DIM, V_PAD)


@triton.jit
def join_segments_kernel(
    output_ptr, partials_ptr, stats_ptr, query_starts_ptr, segment_starts_ptr, output_stride_token,
    GROUP: tl.constexpr, V_DIM: tl.constexpr, V_PAD: tl.constexpr,
    SHORT_QUERIES: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Program (KV head, row, sequence): the output of one row from its segments' partial ones."""
    kv_head = tl.program_id(0)
    row = tl.program_id(1)
    seq = tl.program_id(2)
    first_segment = tl.load(segment_starts_ptr + seq)
    num_segments = tl.load(segment_starts_ptr + seq + 1) - first_segment
    start = tl.load(query_starts_ptr + seq)
    num_queries = tl.load(query_starts_ptr + seq + 1) - start
    if (num_segments <= 1) | (num_queries > SHORT_QUERIES) | (row >= num_queries * GROUP):
        return
    v_dims = tl.arange(0, V_PAD)
    result = tl.zeros([V_PAD], tl.float32)
    base = float("-inf")
    total = 0.0
    for chunk in range(0, num_segments, CHUNK):
        segments = chunk + tl.arange(0, CHUNK)
        is_segment = segments < num_segments
        places = (first_segment + segments) * tl.num_programs(0) + kv_head
        places = (places * (SHORT_QUERIES * GROUP) + row).to(tl.int64)
        largest = tl.load(stats_ptr + places * 2, mask=is_segment, other=float("-inf"))
        totals = tl.load(stats_ptr + places * 2 + 1, mask=is_segment, other=0.0)
        # Segments without keys have written no partial result, except the first one.
        partials = tl.load(
            partials_ptr + places[:, None] * V_PAD + v_dims[None, :],
            mask=(largest > float("-inf"))[:, None],
            other=0.0,
        )
        new_base = tl.maximum(base, tl.max(largest, 0))
        finite = tl.where(new_base == float("-inf"), 0.0, new_base)
        decay = tl.exp2(base - finite)
        shares = tl.exp2(largest - finite)
        total = total * decay + tl.sum(shares * totals, 0)
        result = result * decay + tl.sum(partials * shares[:, None], 0)
        base = new_base
    result = result / tl.where(total > 0.0, total, 1.0)
    token = (start + row // GROUP).to(tl.int64)
    to = output_ptr + token * output_stride_token + (kv_head * GROUP + row % GROUP) * V_DIM
    tl.store(to + v_dims, result.to(output_ptr.dtype.element_ty), mask=v_dims < V_DIM)

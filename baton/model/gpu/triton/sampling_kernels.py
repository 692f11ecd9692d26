"""Triton kernels from logits to tokens: one launch for all rows of a step, whatever they ask for.

A token is the winner of the exponential race of `baton/model/sampling/sampler.py`, whose noise is
computed here again from the row's key. Limits need no sorted logits: the winner among all tokens is
the winner among the kept ones if it is one of them; and if not, all that rank below it are not kept
either, so that the race goes on among those above. Sums are in float32.
"""

import triton
import triton.language as tl

_ABOVE_ALL_IDS = tl.constexpr(2**31 - 1)
_INFINITY_BITS = tl.constexpr(0x7F800000)


@triton.jit
def _mixed(bits):
    """Wellons' 32-bit mixer lowbias32."""
    bits = bits ^ (bits >> 16)
    bits = bits * 0x7FEB352D
    bits = bits ^ (bits >> 15)
    bits = bits * 0x846CA68B
    return bits ^ (bits >> 16)


@triton.jit
def _log_exponential(ids, key_low, key_high):
    """The logarithm of each id's number of Exp(1), as `noise.uniforms` defines it."""
    bits = ids.to(tl.uint32) * 0x9E3779B9 + key_low
    bits = _mixed(_mixed(bits) ^ key_high)
    uniform = (bits.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    # log1p(-uniform), which keeps its digits where 1 - uniform has lost them.
    rest = 1.0 - uniform
    exact = -tl.log(rest) * (uniform / (1.0 - rest))
    return tl.log(tl.where(rest == 1.0, uniform, exact))


@triton.jit
def _tile(row_ptr, start, size, largest, temperature, TILE: tl.constexpr):
    """(ids, tempered logits) of one tile, 0 for the largest and -inf beyond the row."""
    ids = start + tl.arange(0, TILE)
    logits = tl.load(row_ptr + ids, mask=ids < size, other=float("-inf"))
    return ids, tl.div_rn(logits - largest, temperature)


@triton.jit
def _is_above(values, ids, value, token):
    """The tokens that rank before `token`: larger, or equal with a lower id."""
    return (values > value) | ((values == value) & (ids < token))


@triton.jit
def _first_of_best(best, best_ids):
    """(largest, the lowest id that has it)."""
    largest = tl.max(best, 0)
    return largest, tl.min(tl.where(best == largest, best_ids, _ABOVE_ALL_IDS), 0)


@triton.jit
def _largest_logit(row_ptr, size, TILE: tl.constexpr):
    """(largest, the lowest id that has it) of a row."""
    best = tl.full([TILE], float("-inf"), tl.float32)
    best_ids = tl.zeros([TILE], tl.int32)
    for start in range(0, size, TILE):
        ids = start + tl.arange(0, TILE)
        logits = tl.load(row_ptr + ids, mask=ids < size, other=float("-inf"))
        is_better = logits > best
        best = tl.where(is_better, logits, best)
        best_ids = tl.where(is_better, ids, best_ids)
    return _first_of_best(best, best_ids)


@triton.jit
def _race(
    row_ptr, size, largest, temperature, key_low, key_high, value, token,
    TILE: tl.constexpr, IS_SUMMED: tl.constexpr,
):  # fmt: skip
    """(winner, number, weight) of the tokens that rank before `token`; counted if IS_SUMMED."""
    best = tl.full([TILE], float("-inf"), tl.float32)
    best_ids = tl.zeros([TILE], tl.int32)
    number = tl.zeros([TILE], tl.int32)
    weight = tl.zeros([TILE], tl.float32)
    for start in range(0, size, TILE):
        ids, values = _tile(row_ptr, start, size, largest, temperature, TILE)
        scores = values - _log_exponential(ids, key_low, key_high)
        if IS_SUMMED:
            is_above = _is_above(values, ids, value, token)
            number += is_above.to(tl.int32)
            weight += tl.where(is_above, tl.exp(values), 0.0)
            scores = tl.where(is_above, scores, float("-inf"))
        is_better = scores > best
        best = tl.where(is_better, scores, best)
        best_ids = tl.where(is_better, ids, best_ids)
    _, winner = _first_of_best(best, best_ids)
    return winner, tl.sum(number, 0), tl.sum(weight, 0)


@triton.jit
def _weight_of_top(row_ptr, size, largest, temperature, top_k, TILE: tl.constexpr):
    """The weight of the `top_k` largest: by bisection of the bits of how far below 0 they are."""
    low = -1
    high = _INFINITY_BITS
    while low + 1 < high:
        middle = low + (high - low) // 2
        number = tl.zeros([TILE], tl.int32)
        for start in range(0, size, TILE):
            _, values = _tile(row_ptr, start, size, largest, temperature, TILE)
            number += ((0.0 - values).to(tl.int32, bitcast=True) <= middle).to(tl.int32)
        total = tl.sum(number, 0)
        low = tl.where(total < top_k, middle, low)
        high = tl.where(total < top_k, high, middle)
        low = tl.where(total == top_k, high - 1, low)
    number = tl.zeros([TILE], tl.int32)
    weight = tl.zeros([TILE], tl.float32)
    for start in range(0, size, TILE):
        _, values = _tile(row_ptr, start, size, largest, temperature, TILE)
        is_above = (0.0 - values).to(tl.int32, bitcast=True) < high
        number += is_above.to(tl.int32)
        weight += tl.where(is_above, tl.exp(values), 0.0)
    border = tl.exp(0.0 - high.to(tl.float32, bitcast=True))
    return tl.sum(weight, 0) + (top_k - tl.sum(number, 0)).to(tl.float32) * border


@triton.jit
def sample_rows_kernel(
    logits_ptr, settings_ptr, tokens_ptr, row_stride, size,
    HAS_LIMITS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Program (entry): the token of one row.

    An entry of `settings` is eight numbers of 32 bits: row, both halves of the key, top-k, and as
    floats the temperature (0 = greedy), top-p (infinite = off), and the logarithm of min-p.
    """
    entry = tl.program_id(0)
    setting_ptr = settings_ptr + entry * 8
    row_ptr = logits_ptr + tl.load(setting_ptr).to(tl.int64) * row_stride
    key_low = tl.load(setting_ptr + 1).to(tl.uint32, bitcast=True)
    key_high = tl.load(setting_ptr + 2).to(tl.uint32, bitcast=True)
    temperature = tl.load(setting_ptr + 4).to(tl.float32, bitcast=True)
    largest, token = _largest_logit(row_ptr, size, TILE)
    if temperature > 0.0:
        token, number, weight = _race(
            row_ptr, size, largest, temperature, key_low, key_high, float("-inf"), size,
            TILE, HAS_LIMITS,
        )  # fmt: skip
        if HAS_LIMITS:
            top_k = tl.load(setting_ptr + 3)
            top_p = tl.load(setting_ptr + 5).to(tl.float32, bitcast=True)
            floor = tl.load(setting_ptr + 6).to(tl.float32, bitcast=True)
            if (top_k < size) & (top_p < 1.0):
                weight = _weight_of_top(row_ptr, size, largest, temperature, top_k, TILE)
            limit = top_p * weight
            is_kept = (top_k >= size) & (top_p > 1.0) & (floor == float("-inf"))
            while is_kept == 0:
                value = tl.div_rn(tl.load(row_ptr + token) - largest, temperature)
                winner, number, weight = _race(
                    row_ptr, size, largest, temperature, key_low, key_high, value, token,
                    TILE, True,
                )  # fmt: skip
                is_kept = (number < top_k) & (weight < limit) & (value >= floor)
                is_kept |= number == 0
                token = tl.where(is_kept, token, winner)
    tl.store(tokens_ptr + entry, tl.where(token < size, token, 0).to(tl.int64))


@triton.jit
def forbid_tokens_kernel(
    logits_ptr, rows_ptr, words_ptr, row_stride, size, num_words, TILE_WORDS: tl.constexpr
):
    """Program (entry, tile): -inf where a bit of the entry's words is 0, 32 tokens to a word."""
    entry = tl.program_id(0)
    row_ptr = logits_ptr + tl.load(rows_ptr + entry).to(tl.int64) * row_stride
    word_ids = tl.program_id(1) * TILE_WORDS + tl.arange(0, TILE_WORDS)
    words_from = words_ptr + entry.to(tl.int64) * num_words
    words = tl.load(words_from + word_ids, mask=word_ids < num_words, other=0)
    bits = tl.arange(0, 32)
    ids = word_ids[:, None] * 32 + bits[None, :]
    is_forbidden = ((words[:, None] >> bits[None, :]) & 1) == 0
    tl.store(row_ptr + ids, float("-inf"), mask=is_forbidden & (ids < size))

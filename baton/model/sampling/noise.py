"""Counter-based randomness for sampling (decision 0017): no state, no generator objects.

The noise of a token is a hash of (seed, choice, output index, token id), so it does not depend on
batch mates, on the worker, or on which other tokens were candidates; a moved request goes on with
the same stream. Hashes: splitmix64 for the row's key, then two rounds of the 32-bit mixer
`lowbias32` (Wellons) keyed by its halves.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from baton.engine.protocol.batch import SampleRow

_MASK_64 = (1 << 64) - 1
_ONE = np.uint64(1)
_GOLDEN_64 = np.uint64(0x9E3779B97F4A7C15)
_MIX_64_1, _MIX_64_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_GOLDEN_32 = np.uint32(0x9E3779B9)
_MIX_1, _MIX_2 = np.uint32(0x7FEB352D), np.uint32(0x846CA68B)


def row_keys(
    seeds: NDArray[np.uint64], choices: NDArray[np.uint64], output_indexes: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """64-bit keys of tokens to sample."""
    keys = _splitmix64(seeds)
    keys = _splitmix64(keys ^ (choices + _ONE))
    return _splitmix64(keys ^ (output_indexes + _ONE))


def keys_of(rows: Sequence[SampleRow]) -> NDArray[np.uint64]:
    """The keys of the tokens that these rows sample."""
    numbers = [(row.params.seed & _MASK_64, row.choice, row.output_index) for row in rows]
    seeds, choices, output_indexes = np.array(numbers, np.uint64).reshape(-1, 3).T
    return row_keys(seeds, choices, output_indexes)


def uniforms(keys: NDArray[np.uint64], token_ids: NDArray[np.uint32]) -> NDArray[np.float32]:
    """Numbers in (0, 1], one for each row and token id: `[R]` and `[R or 1, N]` -> `[R, N]`.

    Small values keep 32 bits of resolution: they decide when an exponential is the smallest.
    """
    low = keys.astype(np.uint32)[:, None]
    high = (keys >> np.uint64(32)).astype(np.uint32)[:, None]
    bits = _lowbias32(token_ids * _GOLDEN_32 + low)
    bits ^= high
    bits = _lowbias32(bits)
    return (bits.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)


def _splitmix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = values + _GOLDEN_64
    values = (values ^ (values >> np.uint64(30))) * _MIX_64_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_64_2
    return values ^ (values >> np.uint64(31))


def _lowbias32(bits: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Mix in place; returns its argument."""
    bits ^= bits >> np.uint32(16)
    bits *= _MIX_1
    bits ^= bits >> np.uint32(15)
    bits *= _MIX_2
    bits ^= bits >> np.uint32(16)
    return bits

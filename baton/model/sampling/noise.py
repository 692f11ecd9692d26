"""Counter-based randomness for sampling (decision 0017): no state, no generator objects.

The noise of a token is a hash of (seed, choice, output index, token id), so it does not depend on
batch mates, on the worker, or on which other tokens were candidates; a moved request goes on with
the same stream. Hashes: splitmix64 for the row's key, then two rounds of the 32-bit mixer
`lowbias32` (Wellons) keyed by its halves.
"""

import numpy as np
import torch
from numpy.typing import NDArray

_MASK_64 = (1 << 64) - 1
_GOLDEN_64 = 0x9E3779B97F4A7C15
_MASK_32 = (1 << 32) - 1
_GOLDEN_32 = np.uint32(0x9E3779B9)
_MIX_1, _MIX_2 = np.uint32(0x7FEB352D), np.uint32(0x846CA68B)


def row_key(seed: int, choice: int, output_index: int) -> int:
    """64-bit key of one token to sample."""
    key = _splitmix64(seed & _MASK_64)
    key = _splitmix64(key ^ (choice + 1))
    return _splitmix64(key ^ (output_index + 1))


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


def device_uniforms(keys: NDArray[np.uint64], token_ids: torch.Tensor) -> torch.Tensor:
    """The same numbers as `uniforms`, bit by bit, on the device of int64 `token_ids`."""
    halves = np.stack([keys & np.uint64(_MASK_32), keys >> np.uint64(32)]).astype(np.int64)
    low, high = torch.from_numpy(halves).to(token_ids.device)[:, :, None].unbind()
    bits = (token_ids * int(_GOLDEN_32) + low) & _MASK_32
    bits = _mixed(_mixed(bits) ^ high)
    return (bits.float() + 0.5) * 2.0**-32


def _mixed(bits: torch.Tensor) -> torch.Tensor:
    """`_lowbias32` of the 32-bit numbers in int64."""
    bits = bits ^ (bits >> 16)
    bits = (bits * int(_MIX_1)) & _MASK_32
    bits = bits ^ (bits >> 15)
    bits = (bits * int(_MIX_2)) & _MASK_32
    return bits ^ (bits >> 16)


def _splitmix64(value: int) -> int:
    value = (value + _GOLDEN_64) & _MASK_64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return value ^ (value >> 31)


def _lowbias32(bits: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Mix in place; returns its argument."""
    bits ^= bits >> np.uint32(16)
    bits *= _MIX_1
    bits ^= bits >> np.uint32(15)
    bits *= _MIX_2
    bits ^= bits >> np.uint32(16)
    return bits

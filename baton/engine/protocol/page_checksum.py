"""The checksum of a page that lies on a device: cheap there, where CRC-32 is not.

The sum over the page's 64-bit words (little-endian), each times an odd number that depends on its
index, modulo 2^64. Any one changed word is found for certain, and so are swapped words unless they
are equal; it protects from accidents, not from forgery. Here for host memory and as the
definition; `model/gpu/device_pages.py` computes the same with torch.
"""

import numpy as np
from numpy.typing import NDArray

WORD_BYTES = 8


def word_factors(num_words: int) -> NDArray[np.uint64]:
    """The odd factors of a page's words: splitmix64 of their indexes."""
    x = np.arange(1, num_words + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    odd: NDArray[np.uint64] = (x ^ (x >> np.uint64(31))) | np.uint64(1)
    return odd


def page_checksums(pages: NDArray[np.uint64]) -> list[int]:
    """The checksum of each row of `[num_pages, num_words]`."""
    sums: list[int] = (pages * word_factors(pages.shape[1])).sum(axis=1, dtype=np.uint64).tolist()
    return sums

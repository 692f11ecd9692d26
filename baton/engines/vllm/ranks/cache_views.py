"""A layer of vLLM's cache, seen as the pages that travel: `[heads][tokens][K, then V]`.

Views only: nothing is copied, and nothing of vLLM is needed. vLLM 0.32.0 shows a layer as `[blocks,
heads, tokens, values]`, whichever of its orders it has in memory (its KVCacheLayout: HND is LBHNC,
NHD is LBNHC). A backend may cut each block into several of the size that its kernel takes,
and may keep K and V apart: `[blocks, 2, tokens, heads x values]`.
"""

from typing import Any, NamedTuple

import torch

# The widest number of which the values of a head are made: copies go number by number, so that bits
# stay as they are.
_NUMBERS = (torch.int64, torch.int32, torch.int16, torch.uint8)


class CacheForm(NamedTuple):
    """How a backend of vLLM's keeps the blocks of its scheduler."""

    num_blocks: int
    # K and V lie apart, with the values of all heads beside each other.
    is_apart: bool = False


def form_of(spec: Any, num_blocks: int) -> CacheForm:
    """The form of so many blocks by vLLM's AttentionSpec. Raises ValueError for one that is not
    handed over."""
    content, slots = spec.state_content_bytes, spec.num_head_slots
    is_apart = slots == 2 and content == spec.num_kv_heads * spec.head_size * spec.dtype.itemsize
    if spec.page_size_padded is not None or not (is_apart or slots is content is None):
        raise ValueError("the attention backend packs or pads its KV cache: not handed over")
    return CacheForm(num_blocks, is_apart)


def pages_of(name: str, cache: torch.Tensor, num_heads: int, form: CacheForm) -> torch.Tensor:
    """The layer's blocks as numbers, `[num_blocks, num_heads, ...]`: what follows block and head is
    that head's part of the page.

    Raises ValueError for a cache that is none of the forms above.
    """
    num_sides = 2 if form.is_apart else num_heads
    has_whole_heads = not form.is_apart or cache.shape[-1] % num_heads == 0
    if cache.ndim != 4 or cache.shape[1] != num_sides or not has_whole_heads:
        raise ValueError(f"{name}: the cache is {_shape(cache)}, not blocks x {num_sides} x ...")
    if cache.shape[0] % form.num_blocks or cache.stride(-1) != 1:
        raise ValueError(f"{name}: the cache is {_shape(cache)}, not {form.num_blocks} blocks")
    num_values = cache.shape[-1] // num_heads if form.is_apart else cache.shape[-1]
    blocks = _as_numbers(cache, num_values * cache.element_size())
    _, sides, tokens, numbers = blocks.shape
    parts = form.num_blocks, cache.shape[0] // form.num_blocks
    if form.is_apart:
        # block, part of it, K or V, token, head, value
        apart = blocks.view(*parts, sides, tokens, num_heads, numbers // num_heads)
        return apart.permute(0, 4, 1, 3, 2, 5)
    return blocks.view(*parts, sides, tokens, numbers).transpose(1, 2)


def _as_numbers(cache: torch.Tensor, num_bytes: int) -> torch.Tensor:
    """The same memory in numbers of which each head has whole ones."""
    size = cache.element_size()
    places = (cache.storage_offset(), *cache.stride()[:-1])
    starts = [num_bytes, *(place * size for place in places)]
    number = next(n for n in _NUMBERS if not any(start % n.itemsize for start in starts))
    return cache.view(number)


def _shape(cache: torch.Tensor) -> str:
    return "x".join(map(str, cache.shape))

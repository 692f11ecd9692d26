"""Pages have one form, whatever order vLLM's cache has in memory and however many ranks there are.

The orders are those of vLLM 0.32.0, in its KVCacheLayout: of layers, blocks, heads, tokens and
content. Values are bit patterns, among them those that are no numbers.
"""

from itertools import product

import pytest
import torch

from baton.engines.vllm.ranks.cache_views import CacheForm, pages_of
from baton.engines.vllm.ranks.pages import Heads, RankBlocks, RankPages
from baton.model.tensors.side_stream import SideStream
from tests.model.gpu.late_stream import LateStream

NUM_LAYERS, NUM_BLOCKS, NUM_HEADS, BLOCK_SIZE, HEAD_DIM = 2, 5, 4, 4, 6
ORDERS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")
# Orders in which a block may be cut into those of a kernel: its page is one run of bytes.
CUT_ORDERS = ("LBHNC", "LBNHC")


def keys_and_values(seed: int) -> torch.Tensor:
    """`[layers][blocks][heads][tokens][K or V][values]`: what each page must have, in its order."""
    shape = (NUM_LAYERS, NUM_BLOCKS, NUM_HEADS, BLOCK_SIZE, 2, HEAD_DIM)
    bits = torch.randint(-(2**15), 2**15, shape, generator=torch.Generator().manual_seed(seed))
    return bits.to(torch.int16).view(torch.bfloat16)


def in_order(logical: torch.Tensor, order: str) -> torch.Tensor:
    """The same `[L, B, H, N, C]` values, in memory in the order of the letters."""
    places = ["LBHNC".index(letter) for letter in order]
    physical = logical.permute(places).contiguous()
    return physical.permute([places.index(axis) for axis in range(5)])


def layers_of(
    pages: torch.Tensor, heads: Heads, order: str, *, is_apart: bool, num_parts: int
) -> list[torch.Tensor]:
    """A rank's caches as vLLM shows them: each block cut into `num_parts`."""
    own = pages[:, :, heads.first : heads.first + heads.num]
    cut = own.unflatten(3, (num_parts, -1)).transpose(2, 3).flatten(1, 2)
    # Apart: sides, tokens, heads x values.
    logical = cut.permute(0, 1, 4, 3, 2, 5) if is_apart else cut
    return list(in_order(logical.flatten(4), order))


def ranks_of(
    num_ranks: int,
    pages: torch.Tensor,
    order: str,
    *,
    is_apart: bool = False,
    num_parts: int = 1,
    stream: SideStream | None = None,
) -> list[tuple[RankPages, list[torch.Tensor]]]:
    found = []
    for rank in range(num_ranks):
        heads = Heads.of_rank(rank, num_ranks, NUM_HEADS)
        layers = layers_of(pages, heads, order, is_apart=is_apart, num_parts=num_parts)
        caches = {str(number): layer for number, layer in enumerate(layers)}
        blocks = RankBlocks(caches, heads, CacheForm(NUM_BLOCKS, is_apart))
        found.append((RankPages(blocks, heads, stream), layers))
    return found


def ring_of(pages: torch.Tensor) -> memoryview:
    return memoryview(bytearray(pages.nbytes))


def rows_of(pages: torch.Tensor, block_ids: list[int]) -> bytes:
    """The rows in which these blocks travel."""
    return pages[:, block_ids].transpose(0, 1).contiguous().view(torch.uint8).numpy().tobytes()


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.int16)


CASES = [
    *product(ORDERS, [False, True], [1]),
    *product(CUT_ORDERS, [False, True], [2]),
]


@pytest.mark.parametrize(("order", "is_apart", "num_parts"), CASES)
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("is_beside", [False, True])
def test_pages_are_alike_for_every_order_and_go_back_bit_by_bit(
    order: str, is_apart: bool, num_parts: int, num_ranks: int, is_beside: bool
) -> None:
    pages, stream = keys_and_values(0), LateStream() if is_beside else None
    options = {"is_apart": is_apart, "num_parts": num_parts, "stream": stream}
    ring = ring_of(pages)
    for rank, _ in ranks_of(num_ranks, pages, order, **options):
        rank.bind(ring, NUM_BLOCKS)
        rank.save([4, 1], [0, 2])
        while stream is not None and stream.copies:
            stream.run_one()
        rank.num_saved()
    rows = rows_of(pages, [4, 1])
    row = len(rows) // 2
    assert ring[:row] == rows[:row]
    assert ring[2 * row : 3 * row] == rows[row:]
    assert not any(ring[row : 2 * row])

    empty = torch.zeros_like(pages)
    for number, (rank, layers) in enumerate(ranks_of(num_ranks, empty, order, **options)):
        rank.bind(ring, NUM_BLOCKS)
        rank.load([0, 2], [3, 0])
        wanted = empty.clone()
        wanted[:, [3, 0]] = pages[:, [4, 1]]
        heads = Heads.of_rank(number, num_ranks, NUM_HEADS)
        found = layers_of(wanted, heads, order, is_apart=is_apart, num_parts=num_parts)
        for layer, same in zip(layers, found, strict=True):
            assert torch.equal(bits(layer), bits(same))


def test_a_cache_of_another_form_is_refused() -> None:
    cache = torch.zeros(NUM_BLOCKS, NUM_HEADS, BLOCK_SIZE, 2 * HEAD_DIM)
    with pytest.raises(ValueError, match="layer: the cache is 5x4x4x12, not blocks x 3 x"):
        pages_of("layer", cache, 3, CacheForm(NUM_BLOCKS))
    with pytest.raises(ValueError, match="not blocks x 2 x"):
        pages_of("layer", cache, NUM_HEADS, CacheForm(NUM_BLOCKS, is_apart=True))
    with pytest.raises(ValueError, match="not 3 blocks"):
        pages_of("layer", cache, NUM_HEADS, CacheForm(3))

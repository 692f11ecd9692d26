"""Pages in the pool look alike however many ranks write and read them."""

import pytest
import torch

from baton.engines.vllm.ranks.pages import Heads, RankBlocks, RankPages

NUM_BLOCKS, NUM_LAYERS, BLOCK_SIZE, HEAD_VALUES = 6, 3, 4, 8
NUM_HEADS = 4


def caches_of(blocks: torch.Tensor, heads: Heads) -> dict[str, torch.Tensor]:
    """A rank's part of `[layers][blocks][heads][tokens][values]`."""
    part = slice(heads.first, heads.first + heads.num)
    return {str(number): layer[:, part].contiguous() for number, layer in enumerate(blocks)}


def ranks_of(num_ranks: int, blocks: torch.Tensor) -> list[tuple[RankPages, Heads, dict]]:
    total = blocks.shape[2]
    found = []
    for rank in range(num_ranks):
        heads = Heads.of_rank(rank, num_ranks, total)
        caches = caches_of(blocks, heads)
        found.append((RankPages(RankBlocks(caches, heads), heads), heads, caches))
    return found


def random_blocks(num_heads: int = NUM_HEADS) -> torch.Tensor:
    return torch.randn(NUM_LAYERS, NUM_BLOCKS, num_heads, BLOCK_SIZE, HEAD_VALUES)


def empty_pool(blocks: torch.Tensor) -> memoryview:
    return memoryview(bytearray(blocks.nbytes))


def write(
    num_ranks: int, blocks: torch.Tensor, block_ids: list[int], rows: list[int] | None = None
) -> memoryview:
    pool = empty_pool(blocks)
    for pages, _, _ in ranks_of(num_ranks, blocks):
        pages.bind(pool, NUM_BLOCKS)
        pages.save(block_ids, rows or block_ids)
    return pool


def test_a_page_does_not_tell_how_many_ranks_wrote_it() -> None:
    blocks = random_blocks()
    alone = write(1, blocks, [1, 4])
    assert write(2, blocks, [1, 4]) == alone
    assert write(4, blocks, [1, 4]) == alone
    row = len(alone) // NUM_BLOCKS
    assert bytes(alone[row : 2 * row]) == blocks[:, 1].contiguous().numpy().tobytes()
    assert not any(alone[:row]), "only what was asked for is written"


@pytest.mark.parametrize("num_writers", [1, 2, 4])
@pytest.mark.parametrize("num_readers", [1, 2, 4, 8])
def test_each_rank_reads_its_heads_from_any_writer(num_writers: int, num_readers: int) -> None:
    blocks = random_blocks()
    pool = write(num_writers, blocks, [0, 3], rows=[5, 1])
    for pages, heads, caches in ranks_of(num_readers, torch.zeros_like(blocks)):
        pages.bind(pool, NUM_BLOCKS)
        pages.load([5, 1], [0, 3])
        for name, wanted in caches_of(blocks, heads).items():
            assert torch.equal(caches[name][[0, 3]], wanted[[0, 3]])
            assert not caches[name][[1, 2, 4, 5]].any()


def test_a_head_that_several_ranks_have_is_written_by_the_first() -> None:
    heads = [Heads.of_rank(rank, 4, 2) for rank in range(4)]
    assert [each.first for each in heads] == [0, 0, 1, 1]
    assert [each.is_writer for each in heads] == [True, False, True, False]


def test_heads_that_cannot_be_divided_evenly_are_refused() -> None:
    with pytest.raises(ValueError, match="4 KV heads cannot be divided by 3 ranks"):
        Heads.of_rank(0, 3, 4)


def test_a_cache_whose_blocks_are_not_divided_by_head_is_refused() -> None:
    tokens_first = random_blocks()[0].transpose(1, 2).contiguous()
    with pytest.raises(ValueError, match="not blocks x 2 x"):
        RankBlocks({"layer.0": tokens_first}, Heads.of_rank(0, 2, NUM_HEADS))


def test_a_pool_of_other_pages_is_refused() -> None:
    blocks = random_blocks()
    ((pages, _, _),) = ranks_of(1, blocks)
    with pytest.raises(ValueError, match="a page has 256 bytes, the cache 512"):
        pages.bind(memoryview(bytearray(blocks.nbytes // 2)), NUM_BLOCKS)

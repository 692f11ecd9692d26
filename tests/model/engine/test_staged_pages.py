"""A rank whose cache is on a device copies beside the steps, and says when a copy has ended."""

import torch

from baton.engines.vllm.ranks.pages import Heads, RankBlocks, RankPages
from tests.model.gpu.late_stream import LateStream

NUM_BLOCKS, NUM_ROWS = 6, 4
HEADS = [Heads.of_rank(rank, 2, 2) for rank in range(2)]


def rank_of(heads: Heads, stream: LateStream) -> tuple[RankPages, torch.Tensor, memoryview]:
    """A rank with one layer, whose block n is full of n + 1; its cache and ring."""
    filled = torch.arange(1, NUM_BLOCKS + 1, dtype=torch.float32)[:, None, None, None]
    cache = filled.repeat(1, 1, 2, 4)
    pages = RankPages(RankBlocks({"layer": cache}, heads), heads, stream)
    ring = memoryview(bytearray(NUM_ROWS * 2 * cache[0].nbytes))
    pages.bind(ring, NUM_ROWS)
    return pages, cache, ring


def heads_of(ring: memoryview, row: int) -> list[float]:
    """The first value of each head in a row."""
    values = torch.frombuffer(ring, dtype=torch.float32).view(NUM_ROWS, 2, -1)
    return values[row, :, 0].tolist()


def test_a_save_has_ended_when_its_copy_has_and_not_before() -> None:
    stream = LateStream()
    pages, _, ring = rank_of(HEADS[1], stream)
    pages.save([2], [0])
    pages.save([3, 4], [1, 2])
    assert pages.is_beside
    assert pages.num_saved() == 0
    assert heads_of(ring, 0) == [0, 0]
    stream.run_one()
    assert pages.num_saved() == 1
    assert [heads_of(ring, row) for row in range(3)] == [[0, 3], [0, 0], [0, 0]]
    stream.run_one()
    assert pages.num_saved() == 2
    assert [heads_of(ring, row) for row in range(3)] == [[0, 3], [0, 4], [0, 5]]
    assert stream.num_waits == 0


def test_a_block_that_is_written_again_leaves_as_it_was() -> None:
    stream = LateStream()
    pages, cache, ring = rank_of(HEADS[0], stream)
    pages.save([2], [0])
    cache[2] = 99
    stream.run_one()
    pages.num_saved()
    assert heads_of(ring, 0) == [3, 0]


def test_rows_that_were_loaded_may_change_at_once() -> None:
    pages, cache, ring = rank_of(HEADS[0], LateStream())
    torch.frombuffer(ring, dtype=torch.float32)[:] = 7
    pages.load([1], [4])
    ring[:] = bytes(len(ring))
    assert cache[:, 0, 0, 0].tolist() == [1, 2, 3, 4, 7, 6]


def test_a_rank_whose_heads_others_write_is_never_waited_for() -> None:
    stream = LateStream()
    heads = Heads.of_rank(1, 4, 2)
    assert not heads.is_writer
    pages, _, _ = rank_of(heads, stream)
    pages.save([2], [0])
    assert not stream.copies
    assert pages.num_saved() == 1

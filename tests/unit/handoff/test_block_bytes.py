import pytest

from baton.handoff.block_bytes import MAX_DATA_BYTES, BlockBytes
from baton.wire.kv_spec import KVSpec

SPEC = KVSpec.of_layers(4, [(1, 2, 2, "float32"), (1, 4, 4, "float32")])


def test_gathered_pages_scattered_elsewhere_are_the_same_pages() -> None:
    pool = bytearray(range(256)) * (SPEC.row_bytes * 8 // 256)
    blocks = BlockBytes(SPEC, memoryview(pool))
    data = blocks.gather(1, [3, 0])

    blocks.scatter(1, [5, 6], data)

    assert blocks.gather(1, [5, 6]) == data
    assert blocks.gather(0, [5]) == BlockBytes(SPEC, memoryview(pool)).gather(0, [5])


def test_a_frame_never_exceeds_the_limit() -> None:
    blocks = BlockBytes(SPEC, memoryview(bytearray(SPEC.row_bytes)))

    assert blocks.blocks_per_frame(0) * blocks.page_bytes(0) <= MAX_DATA_BYTES


def test_a_page_larger_than_a_frame_is_refused() -> None:
    spec = KVSpec.of_layers(16, [(128, 256, 256, "float32")])

    with pytest.raises(ValueError, match="exceeds a frame"):
        BlockBytes(spec, memoryview(bytearray(spec.row_bytes)))


def test_a_pool_of_a_broken_row_is_refused() -> None:
    with pytest.raises(ValueError, match="no multiple"):
        BlockBytes(SPEC, memoryview(bytearray(SPEC.row_bytes + 1)))

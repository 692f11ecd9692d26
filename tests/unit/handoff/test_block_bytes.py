from zlib import crc32

import pytest

from baton.handoff.block_bytes import BlockBytes
from baton.wire.kv_spec import KVSpec

SPEC = KVSpec.of_layers(4, [(1, 2, 2, "float32"), (1, 4, 4, "float32")])
LAYER_0, LAYER_1 = range(1), range(1, 2)


def test_pages_written_elsewhere_are_the_same_pages_with_the_same_checksum() -> None:
    pool = bytearray(range(256)) * (SPEC.row_bytes * 8 // 256)
    blocks = BlockBytes(SPEC, memoryview(pool))
    before = [bytes(page) for page in blocks.stripes(LAYER_1, [3, 0])]
    wanted = blocks.checksum(LAYER_1, [3, 0], start=5)
    other_layer = bytes(blocks.stripes(LAYER_0, [5])[0])

    written = blocks.write(LAYER_1, [5, 6], blocks.addresses(LAYER_1, [3, 0]), checksum=5)

    assert blocks.stripes(LAYER_1, [5, 6]) == before
    assert written == wanted == crc32(before[0] + before[1], 5)
    assert blocks.stripes(LAYER_0, [5]) == [other_layer]


def test_a_page_larger_than_a_frame_is_refused() -> None:
    spec = KVSpec.of_layers(16, [(128, 256, 256, "float32")])

    with pytest.raises(ValueError, match="exceeds a frame"):
        BlockBytes(spec, memoryview(bytearray(spec.row_bytes)))


def test_a_pool_of_a_broken_row_is_refused() -> None:
    with pytest.raises(ValueError, match="not a multiple"):
        BlockBytes(SPEC, memoryview(bytearray(SPEC.row_bytes + 1)))

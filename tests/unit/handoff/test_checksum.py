"""The place of a Blocks frame is a part of its checksum, so that pages count in that place only."""

import pytest

from baton.handoff.block_bytes import BlockBytes
from baton.handoff.checksum import header_checksum
from baton.handoff.ticket import BadBlocks
from baton.handoff.transport import Pages
from baton.wire.v1 import handoff_pb2
from tests.unit.handoff.conftest import SPEC, Pair

PLACE = handoff_pb2.Blocks(
    xfer_id=7, epoch=2, layer=3, num_layers=2, first_block=5, num_blocks=4, checksum=1
)
FIELDS = ["xfer_id", "epoch", "layer", "num_layers", "first_block", "num_blocks"]


@pytest.mark.parametrize("field", FIELDS)
def test_another_transfer_epoch_layer_or_block_has_another_checksum(field: str) -> None:
    moved = handoff_pb2.Blocks()
    moved.CopyFrom(PLACE)
    setattr(moved, field, getattr(PLACE, field) + 1)

    assert header_checksum(moved) != header_checksum(PLACE)


def test_each_number_of_layers_has_a_checksum_of_its_own() -> None:
    checksums = {
        header_checksum(handoff_pb2.Blocks(xfer_id=7, num_layers=num_layers))
        for num_layers in range(4)
    }
    assert len(checksums) == 4


@pytest.mark.parametrize("field", ["seq", "head_hi", "checksum", "capability", "data"])
def test_the_rest_of_a_frame_is_not_its_place(field: str) -> None:
    same = handoff_pb2.Blocks()
    same.CopyFrom(PLACE)
    setattr(same, field, b"x" if field in ("capability", "data") else 9)

    assert header_checksum(same) == header_checksum(PLACE)


@pytest.mark.parametrize("field", ["xfer_id", "epoch", "first_block"])
def test_pages_of_another_transfer_epoch_or_block_do_not_pass(pair: Pair, field: str) -> None:
    pair.sender.finish()
    frame = pair.next_frame().blocks
    fetched: list[Pages | BadBlocks] = []
    pair.end.fetch(frame, fetched.append)
    (pages,) = fetched
    assert not isinstance(pages, BadBlocks)
    block_ids = pair.target_rows[: frame.num_blocks]
    blocks = BlockBytes(SPEC, memoryview(pair.target))
    assert pages.land(blocks, frame, block_ids, pair.late.append)
    setattr(frame, field, getattr(frame, field) + 1)

    with pytest.raises(BadBlocks, match="checksum"):
        pages.land(blocks, frame, block_ids, pair.late.append)

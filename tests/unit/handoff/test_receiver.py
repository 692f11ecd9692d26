import random

import pytest

from baton.handoff.ticket import BadBlocks, ForeignFrame
from baton.wire.v1 import handoff_pb2
from tests.unit.handoff.conftest import Pair, make_pair


def blocks_of(pair: Pair) -> tuple[list[handoff_pb2.Blocks], handoff_pb2.Commit]:
    pair.sender.advance(8)
    frames = [pair.sender.next_frame().blocks for _ in range(2)]
    pair.sender.finish()
    while pair.sender.next_bytes():
        frames.append(pair.sender.next_frame().blocks)
    return frames, pair.sender.next_frame().commit


def test_frames_in_any_order_with_repeats_fill_every_block(pair: Pair) -> None:
    frames, commit = blocks_of(pair)
    pair.receiver.bind(pair.target_ids)
    pair.receiver.commit(commit)
    mixed = frames * 3
    random.Random(1).shuffle(mixed)

    for frame in mixed:
        pair.receiver.take(frame)

    assert pair.receiver.is_complete
    pair.assert_moved()
    assert sum(pair.consumed) == 3 * pair.sender.num_bytes_sent


def test_a_repeat_writes_nothing(pair: Pair) -> None:
    frames, _ = blocks_of(pair)
    pair.receiver.bind(pair.target_ids)
    pair.receiver.take(frames[0])
    before = bytes(pair.target)
    pair.target[:] = b"\0" * len(pair.target)

    pair.receiver.take(frames[0])

    assert not any(pair.target)
    assert any(before)


def test_frames_before_the_bind_wait_and_are_not_consumed(pair: Pair) -> None:
    frames, commit = blocks_of(pair)
    for frame in frames:
        pair.receiver.take(frame)
    pair.receiver.commit(commit)
    assert pair.consumed == []
    assert not pair.receiver.is_complete

    pair.receiver.bind(pair.target_ids)

    assert pair.receiver.is_complete
    assert sum(pair.consumed) == pair.sender.num_bytes_sent
    pair.assert_moved()


def test_closing_gives_back_the_bytes_of_waiting_frames(pair: Pair) -> None:
    frames, _ = blocks_of(pair)
    for frame in frames:
        pair.receiver.take(frame)

    pair.receiver.close()

    assert sum(pair.consumed) == pair.sender.num_bytes_sent
    assert not any(pair.target)


@pytest.mark.parametrize("position", [0, 17, -1])
def test_one_flipped_bit_is_refused_and_writes_nothing(pair: Pair, position: int) -> None:
    frames, _ = blocks_of(pair)
    pair.receiver.bind(pair.target_ids)
    data = bytearray(frames[0].data)
    data[position] ^= 0x10
    frames[0].data = bytes(data)

    with pytest.raises(BadBlocks, match="checksum"):
        pair.receiver.take(frames[0])

    assert not any(pair.target)
    assert sum(pair.consumed) == len(data)


def test_pages_under_another_layer_or_block_are_refused(pair: Pair) -> None:
    frames, _ = blocks_of(pair)
    pair.receiver.bind(pair.target_ids)
    moved = handoff_pb2.Blocks()
    moved.CopyFrom(frames[0])
    moved.first_block = 1
    with pytest.raises(BadBlocks, match="checksum"):
        pair.receiver.take(moved)
    other_transfer = handoff_pb2.Blocks()
    other_transfer.CopyFrom(frames[0])
    other_transfer.xfer_id += 1
    with pytest.raises(BadBlocks, match="checksum"):
        pair.receiver.take(other_transfer)


def test_truncated_data_is_refused(pair: Pair) -> None:
    frames, _ = blocks_of(pair)
    pair.receiver.bind(pair.target_ids)
    frames[0].data = frames[0].data[:-1]

    with pytest.raises(BadBlocks, match="bytes of data"):
        pair.receiver.take(frames[0])


@pytest.mark.parametrize(
    ("field", "value"), [("layer", 9), ("first_block", 3), ("num_blocks", 0), ("head_hi", 1)]
)
def test_a_place_outside_the_transfer_is_refused(pair: Pair, field: str, value: int) -> None:
    frames, _ = blocks_of(pair)
    pair.receiver.bind(pair.target_ids)
    setattr(frames[0], field, value)

    with pytest.raises(BadBlocks):
        pair.receiver.take(frames[0])

    assert not any(pair.target)


def test_a_block_that_was_not_asked_for_is_refused() -> None:
    pair = make_pair(10)
    frames, _ = blocks_of(pair)
    late = make_pair(10, first_missing_block=1)
    late.receiver.bind(late.target_ids)

    with pytest.raises(BadBlocks, match="outside 1:3"):
        late.receiver.take(frames[0])


@pytest.mark.parametrize(("field", "value"), [("epoch", 1), ("capability", b"x" * 16)])
def test_a_foreign_frame_changes_nothing(pair: Pair, field: str, value: object) -> None:
    frames, _ = blocks_of(pair)
    pair.receiver.bind(pair.target_ids)
    setattr(frames[0], field, value)

    with pytest.raises(ForeignFrame, match=field):
        pair.receiver.take(frames[0])

    assert not any(pair.target)
    assert sum(pair.consumed) == len(frames[0].data)


def test_a_commit_that_counts_other_blocks_is_refused(pair: Pair) -> None:
    with pytest.raises(BadBlocks, match="2 blocks sent, 3 missing"):
        pair.receiver.commit(handoff_pb2.Commit(xfer_id=7, epoch=2, num_blocks=2))


def test_reference_payloads_are_refused_by_the_stream_transport(pair: Pair) -> None:
    frames, _ = blocks_of(pair)
    pair.receiver.bind(pair.target_ids)
    frames[0].shm_ref.offset = 3

    with pytest.raises(BadBlocks, match="no inline data"):
        pair.receiver.take(frames[0])

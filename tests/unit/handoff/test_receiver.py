import random
from collections.abc import Callable, Sequence

import pytest

from baton.handoff.block_bytes import BlockBytes
from baton.handoff.outcomes import BadBlocksCause
from baton.handoff.ticket import BadBlocks, ForeignFrame
from baton.handoff.transport import Landed, num_payload_bytes
from baton.wire.v1 import handoff_pb2
from tests.unit.handoff.conftest import SPEC, Pair, make_pair


def blocks_of(pair: Pair) -> tuple[list[handoff_pb2.Blocks], handoff_pb2.Commit]:
    pair.sender.advance(8)
    frames = [pair.next_frame().blocks for _ in range(2)]
    pair.sender.finish()
    while pair.sender.next_bytes():
        frames.append(pair.next_frame().blocks)
    return frames, pair.next_frame().commit


def test_frames_in_any_order_with_repeats_fill_every_block(pair: Pair) -> None:
    frames, commit = blocks_of(pair)
    pair.receiver.bind(pair.target_rows)
    pair.receiver.commit(commit)
    mixed = frames * 3
    random.Random(1).shuffle(mixed)

    for frame in mixed:
        pair.take(frame)

    assert pair.receiver.is_complete
    pair.assert_moved()
    assert sum(pair.consumed) == 3 * pair.num_bytes_sent


def test_stripes_and_single_layers_of_one_transfer_count_each_page_once(transport: str) -> None:
    pair, by_layer = (
        make_pair(10, transport=transport, takes_stripes=takes) for takes in (True, False)
    )
    stripes, commit = blocks_of(pair)
    by_layer.sender.finish()
    layers = [by_layer.next_frame().blocks for _ in SPEC.layers]
    pair.receiver.bind(pair.target_rows)
    pair.receiver.commit(commit)

    for frame in (layers[1], *stripes, *layers):
        pair.take(frame)

    assert pair.receiver.is_complete
    pair.assert_moved()
    assert pair.receiver.num_bytes_received == pair.num_bytes_sent


def test_a_repeat_writes_nothing(pair: Pair) -> None:
    frames, _ = blocks_of(pair)
    pair.receiver.bind(pair.target_rows)
    pair.take(frames[0])
    before = bytes(pair.target)
    pair.target[:] = b"\0" * len(pair.target)

    pair.take(frames[0])

    assert not any(pair.target)
    assert any(before)


def test_frames_before_the_bind_wait_and_are_not_consumed(pair: Pair) -> None:
    frames, commit = blocks_of(pair)
    for frame in frames:
        pair.take(frame)
    pair.receiver.commit(commit)
    assert pair.consumed == []
    assert not pair.receiver.is_complete

    pair.receiver.bind(pair.target_rows)

    assert pair.receiver.is_complete
    assert sum(pair.consumed) == pair.num_bytes_sent
    pair.assert_moved()


def test_closing_gives_back_the_bytes_of_waiting_frames(pair: Pair) -> None:
    frames, _ = blocks_of(pair)
    for frame in frames:
        pair.take(frame)

    pair.receiver.close()

    assert sum(pair.consumed) == pair.num_bytes_sent
    assert not any(pair.target)


@pytest.mark.parametrize("is_bound", [False, True])
def test_frames_after_the_close_are_consumed_and_write_nothing(pair: Pair, is_bound: bool) -> None:
    frames, _ = blocks_of(pair)
    if is_bound:
        pair.receiver.bind(pair.target_rows)
    pair.receiver.close()

    for frame in frames:
        pair.take(frame)

    assert sum(pair.consumed) == pair.num_bytes_sent
    assert pair.receiver.num_bytes_received == 0
    assert not any(pair.target)


@pytest.mark.parametrize("bad", [0, 1, -1])
def test_a_bad_frame_among_those_that_waited_is_refused_and_each_is_consumed_once(
    pair: Pair, bad: int
) -> None:
    frames, _ = blocks_of(pair)
    frames[bad].checksum ^= 1
    for frame in frames:
        pair.take(frame)

    with pytest.raises(BadBlocks, match="checksum"):
        pair.receiver.bind(pair.target_rows)

    assert pair.consumed == [num_payload_bytes(frame) for frame in frames]


class LatePages:
    """Pages that land when the test says so."""

    def __init__(self) -> None:
        self.tell: Landed | None = None
        self.num_releases = 0

    def land(
        self,
        blocks: BlockBytes,
        frame: handoff_pb2.Blocks,
        block_ids: Sequence[int],
        landed: Landed,
    ) -> bool:
        self.tell = landed
        return False

    def release(self) -> None:
        self.num_releases += 1


def take_late(pair: Pair) -> tuple[list[handoff_pb2.Blocks], list[Landed]]:
    """Let every frame of the transfer begin to land."""
    frames, commit = blocks_of(pair)
    pair.receiver.bind(pair.target_rows)
    pair.receiver.commit(commit)
    tells = []
    for frame in frames:
        pages = LatePages()
        pair.receiver.take(frame, pages)
        assert pages.num_releases == 1
        assert pages.tell is not None
        tells.append(pages.tell)
    return frames, tells


def test_pages_that_land_late_count_once_they_have_landed(pair: Pair) -> None:
    frames, tells = take_late(pair)
    assert pair.consumed == [num_payload_bytes(frame) for frame in frames]
    assert pair.receiver.num_bytes_received == 0

    for index, tell in enumerate(tells):
        assert not pair.receiver.is_complete
        tell(None)
        assert len(pair.late) == index + 1

    assert pair.receiver.is_complete
    assert pair.receiver.num_bytes_received == pair.num_bytes_sent


def test_pages_that_turn_out_bad_late_do_not_count(pair: Pair) -> None:
    _, tells = take_late(pair)
    fault = BadBlocks(BadBlocksCause.CHECKSUM, "wrong")

    for tell in tells:
        tell(fault)

    assert pair.late == [fault] * len(tells)
    assert pair.receiver.num_bytes_received == 0
    assert not pair.receiver.is_complete


@pytest.mark.parametrize("fault", [None, BadBlocks(BadBlocksCause.CHECKSUM, "wrong")])
def test_pages_that_land_after_the_close_change_nothing_and_are_not_told(
    pair: Pair, fault: BadBlocks | None
) -> None:
    _, tells = take_late(pair)
    pair.receiver.close()

    for tell in tells:
        tell(fault)

    assert pair.late == []
    assert pair.receiver.num_bytes_received == 0
    assert not pair.receiver.is_complete


@pytest.mark.parametrize("position", [0, 17, -1])
def test_one_flipped_bit_on_the_way_is_refused(position: int) -> None:
    pair = make_pair(10)
    frames, _ = blocks_of(pair)
    pair.receiver.bind(pair.target_rows)
    data = bytearray(frames[0].data)
    data[position] ^= 0x10
    frames[0].data = bytes(data)

    with pytest.raises(BadBlocks, match="checksum"):
        pair.take(frames[0])

    assert not pair.receiver.is_complete
    assert sum(pair.consumed) == len(data)


@pytest.mark.parametrize("position", [0, 17, -1])
def test_a_shared_page_that_has_changed_since_it_was_sent_is_refused(position: int) -> None:
    pair = make_pair(10, transport="shm")
    frames, _ = blocks_of(pair)
    pair.receiver.bind(pair.target_rows)
    page = pair.source_rows[0] * SPEC.row_bytes
    pair.source[page + position % SPEC.layers[0].page_bytes(SPEC.block_size)] ^= 0x10

    with pytest.raises(BadBlocks, match="checksum"):
        pair.take(frames[0])

    assert sum(pair.consumed) == frames[0].pool_ref.num_bytes


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda ref: ref.block_ids.append(0), "blocks named where 2"),
        (lambda ref: ref.block_ids.__setitem__(0, 99), "block 99 of a pool of 6"),
        (lambda ref: setattr(ref, "num_bytes", 7), "7 bytes of data"),
        (lambda ref: ref.block_ids.reverse(), "checksum"),
    ],
)
def test_a_reference_to_other_blocks_is_refused(
    change: Callable[[handoff_pb2.PoolRef], object], cause: str
) -> None:
    pair = make_pair(10, transport="shm")
    frames, _ = blocks_of(pair)
    pair.receiver.bind(pair.target_rows)
    change(frames[0].pool_ref)

    with pytest.raises(BadBlocks, match=cause):
        pair.take(frames[0])


def test_pages_under_another_layer_or_block_are_refused(pair: Pair) -> None:
    frames, _ = blocks_of(pair)
    pair.receiver.bind(pair.target_rows)
    moved = handoff_pb2.Blocks()
    moved.CopyFrom(frames[0])
    moved.first_block = 1
    with pytest.raises(BadBlocks, match="checksum"):
        pair.take(moved)
    other_transfer = handoff_pb2.Blocks()
    other_transfer.CopyFrom(frames[0])
    other_transfer.xfer_id += 1
    with pytest.raises(BadBlocks, match="checksum"):
        pair.take(other_transfer)


def test_truncated_data_is_refused() -> None:
    pair = make_pair(10)
    frames, _ = blocks_of(pair)
    pair.receiver.bind(pair.target_rows)
    frames[0].data = frames[0].data[:-1]

    with pytest.raises(BadBlocks, match="bytes of data"):
        pair.take(frames[0])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("layer", 9), ("first_block", 3), ("num_blocks", 0), ("head_hi", 1)),
        *(("num_layers", 3), ("num_layers", 2**32 - 1)),
    ],
)
def test_a_place_outside_the_transfer_is_refused(pair: Pair, field: str, value: int) -> None:
    frames, _ = blocks_of(pair)
    pair.receiver.bind(pair.target_rows)
    setattr(frames[0], field, value)

    with pytest.raises(BadBlocks):
        pair.take(frames[0])

    assert not any(pair.target)


def test_a_block_that_was_not_asked_for_is_refused() -> None:
    pair = make_pair(10)
    frames, _ = blocks_of(pair)
    late = make_pair(10, first_missing_block=1)
    late.receiver.bind(late.target_rows)

    with pytest.raises(BadBlocks, match="outside 1:3"):
        late.take(frames[0])


@pytest.mark.parametrize(("field", "value"), [("epoch", 1), ("capability", b"x" * 16)])
def test_a_foreign_frame_changes_nothing(pair: Pair, field: str, value: object) -> None:
    frames, _ = blocks_of(pair)
    pair.receiver.bind(pair.target_rows)
    setattr(frames[0], field, value)

    with pytest.raises(ForeignFrame, match=field):
        pair.take(frames[0])

    assert not any(pair.target)
    assert pair.consumed == []


def test_a_commit_that_counts_other_blocks_is_refused(pair: Pair) -> None:
    with pytest.raises(BadBlocks, match="2 blocks sent, 3 missing"):
        pair.receiver.commit(handoff_pb2.Commit(xfer_id=7, epoch=2, num_blocks=2))


def test_reference_payloads_are_refused_by_the_stream_transport() -> None:
    pair = make_pair(10)
    frames, _ = blocks_of(pair)
    pair.receiver.bind(pair.target_rows)
    frames[0].pool_ref.num_bytes = 3

    with pytest.raises(BadBlocks, match="no inline data"):
        pair.take(frames[0])

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.handoff.block_bytes import BlockBytes
from baton.handoff.frame_codec import serialize
from baton.handoff.sender import Sender
from baton.handoff.stripes import single_layers
from baton.handoff.ticket import Ticket
from baton.handoff.transport import num_payload_bytes
from baton.handoff.transports.grpc_stream import GrpcSender
from baton.wire.kv_spec import KVSpec
from baton.wire.v1 import handoff_pb2
from tests.unit.handoff.conftest import SPEC, Pair, make_pair


def drain(sender: Sender) -> list[handoff_pb2.PrefillFrame]:
    frames = []
    while sender.has_next():
        frames.append(handoff_pb2.PrefillFrame.FromString(serialize(sender.next_frame())))
    return frames


@pytest.mark.parametrize(
    ("takes_stripes", "layers"), [(True, [(0, 2), (2, 0)]), (False, [(0, 0), (1, 0), (2, 0)])]
)
def test_full_blocks_leave_as_they_become_final_in_the_stripes_that_the_peer_takes(
    transport: str, takes_stripes: bool, layers: list[tuple[int, int]]
) -> None:
    pair = make_pair(10, transport=transport, takes_stripes=takes_stripes)
    pair.sender.advance(9)

    frames = [frame.blocks for frame in drain(pair.sender)]

    assert [(frame.layer, frame.num_layers) for frame in frames] == layers
    assert {(frame.first_block, frame.num_blocks) for frame in frames} == {(0, 2)}
    assert not pair.sender.is_done


def test_layers_that_are_final_leave_before_the_others(transport: str) -> None:
    pair = make_pair(10, transport=transport)
    pair.sender.advance(9, num_layers=1)
    early = [frame.blocks for frame in drain(pair.sender)]
    pair.sender.advance(9)

    late = [frame.blocks for frame in drain(pair.sender)]

    assert [(frame.layer, frame.num_layers) for frame in early] == [(0, 0)]
    assert [(frame.layer, frame.num_layers) for frame in late] == [(1, 0), (2, 0)]
    assert {(frame.first_block, frame.num_blocks) for frame in early + late} == {(0, 2)}


def test_the_partial_last_block_leaves_once_and_the_commit_comes_last(pair: Pair) -> None:
    pair.sender.advance(10)
    drain(pair.sender)

    pair.sender.finish()
    frames = drain(pair.sender)

    assert [f.WhichOneof("frame") for f in frames] == ["blocks", "blocks", "commit"]
    assert [f.blocks.first_block for f in frames[:2]] == [2, 2]
    assert frames[-1].commit.num_messages == 4
    assert frames[-1].commit.num_blocks == 3
    assert pair.sender.is_done


def test_blocks_that_the_receiver_has_are_not_sent() -> None:
    pair = make_pair(10, first_missing_block=2)
    pair.sender.advance(8)
    assert not pair.sender.has_next()

    pair.sender.finish()

    assert {f.blocks.first_block for f in drain(pair.sender)[:-1]} == {2}


def test_with_nothing_missing_only_the_commit_travels() -> None:
    pair = make_pair(8, first_missing_block=2)

    pair.sender.finish()

    frames = drain(pair.sender)
    assert [f.WhichOneof("frame") for f in frames] == ["commit"]
    assert frames[0].commit.num_blocks == 0


def test_next_bytes_tells_the_size_of_the_next_frame(pair: Pair) -> None:
    pair.sender.finish()
    while pair.sender.has_next():
        expected = pair.sender.next_bytes()
        assert num_payload_bytes(pair.next_frame().blocks) == expected


def test_a_long_prompt_is_cut_into_frames_of_two_mebibytes() -> None:
    spec = KVSpec.of_layers(16, [(8, 128, 128, "float32")])
    blocks = BlockBytes(spec, memoryview(bytearray(spec.row_bytes * 20)))
    sender = Sender(
        Ticket(1, "r", 1, b"c" * 16, 0, 20),
        range(20),
        blocks,
        GrpcSender(blocks, single_layers(spec)),
    )
    sender.finish()

    frames = drain(sender)

    assert max(num_payload_bytes(f.blocks) for f in frames) == 2 * 2**20
    assert sum(f.blocks.num_blocks for f in frames[:-1]) == 20
    assert [f.blocks.seq for f in frames[:-1]] == list(range(len(frames) - 1))


@given(
    num_tokens=st.integers(1, 60),
    first_missing=st.integers(0, 15),
    chunks=st.lists(st.tuples(st.integers(0, 60), st.sampled_from([1, 2, 3, None])), max_size=6),
    seed=st.integers(0, 100),
    transport=st.sampled_from(["grpc", "shm"]),
    takes_stripes=st.booleans(),
)
def test_any_chunking_moves_exactly_the_missing_blocks(
    num_tokens: int,
    first_missing: int,
    chunks: list[tuple[int, int | None]],
    seed: int,
    transport: str,
    takes_stripes: bool,
) -> None:
    first_missing = min(first_missing, num_tokens // SPEC.block_size)
    pair = make_pair(num_tokens, first_missing, seed, transport, takes_stripes=takes_stripes)
    frames = []
    for num_final, num_layers in chunks:
        pair.sender.advance(min(num_final, num_tokens), num_layers)
        frames += drain(pair.sender)
    pair.sender.finish()
    frames += drain(pair.sender)

    pair.receiver.bind(pair.target_rows)
    for frame in frames[:-1]:
        pair.take(frame.blocks)
    assert not pair.receiver.is_complete
    pair.receiver.commit(frames[-1].commit)

    assert pair.receiver.is_complete
    num_bytes_sent = sum(num_payload_bytes(frame.blocks) for frame in frames[:-1])
    assert sum(pair.consumed) == num_bytes_sent == pair.receiver.num_bytes_received
    pair.assert_moved()


def test_a_block_that_travels_and_has_no_row_is_our_bug() -> None:
    blocks = BlockBytes(SPEC, memoryview(bytearray(SPEC.row_bytes)))
    with pytest.raises(AssertionError):
        Sender(Ticket(1, "r", 1, b"", 0, 2), [0], blocks, GrpcSender(blocks, []))

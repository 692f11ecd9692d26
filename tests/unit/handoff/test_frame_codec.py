"""The codec beside protobuf's own: what either writes, both read alike."""

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from baton.handoff.frame_codec import InlineFrame, encode_blocks, parse, serialize
from baton.wire.v1 import handoff_pb2

U32 = st.integers(0, 2**32 - 1)
NUMBERS = (
    *("epoch", "seq", "layer", "num_layers", "first_block", "num_blocks"),
    *("head_lo", "head_hi", "checksum"),
)
PLACES = st.builds(
    handoff_pb2.Blocks,
    xfer_id=st.integers(0, 2**64 - 1),
    capability=st.binary(max_size=20),
    **dict.fromkeys(NUMBERS, U32),
)
DATA = st.one_of(st.binary(max_size=40), st.integers(0, 20_000).map(lambda size: b"\x5a" * size))


def with_data(place: handoff_pb2.Blocks, data: bytes) -> handoff_pb2.PrefillFrame:
    frame = handoff_pb2.PrefillFrame(blocks=place)
    frame.blocks.data = data
    return frame


def read_like_protobuf(frame: Any) -> handoff_pb2.PrefillFrame:
    """What a parsed frame says, as a message."""
    if not isinstance(frame, InlineFrame):
        assert isinstance(frame, handoff_pb2.PrefillFrame)
        return frame
    assert frame.WhichOneof("frame") == "blocks"
    blocks = frame.blocks
    assert blocks.HasField("data")
    assert not blocks.HasField("pool_ref")
    assert not blocks._message.HasField("payload")
    return with_data(blocks._message, bytes(blocks.data))


@given(place=PLACES, data=DATA, num_pages=st.integers(1, 5))
def test_what_is_encoded_is_what_protobuf_reads(
    place: handoff_pb2.Blocks, data: bytes, num_pages: int
) -> None:
    step = max(1, -(-len(data) // num_pages))
    pages = [memoryview(data)[start : start + step] for start in range(0, len(data), step)]

    message = encode_blocks(place, pages)

    assert isinstance(parse(message), InlineFrame)
    assert handoff_pb2.PrefillFrame.FromString(message) == with_data(place, data)
    if not place.num_layers:  # which protobuf writes behind the data
        assert message == with_data(place, data).SerializeToString(deterministic=True)


@given(place=PLACES, data=DATA)
def test_what_protobuf_writes_is_read_where_it_has_come(
    place: handoff_pb2.Blocks, data: bytes
) -> None:
    place.num_layers = 0
    message = with_data(place, data).SerializeToString()

    frame = parse(message)

    assert isinstance(frame, InlineFrame)
    assert frame.blocks.data.obj is message
    assert read_like_protobuf(frame) == with_data(place, data)
    for name in ("xfer_id", "capability", *NUMBERS):
        assert getattr(frame.blocks, name) == getattr(place, name)


@pytest.mark.parametrize(
    "fields",
    [
        {"commit": {"xfer_id": 3, "num_blocks": 2}},
        {"blocks": {"xfer_id": 3, "pool_ref": {"num_bytes": 4, "block_ids": [1, 2]}}},
        {"blocks": {"xfer_id": 3}},
        {"hello": {"worker_id": "w"}},
        {},
    ],
)
def test_other_frames_are_protobufs(fields: dict[str, Any]) -> None:
    frame = handoff_pb2.PrefillFrame(**fields)

    assert parse(serialize(frame)) == frame


def varint(value: int, num_bytes: int = 1) -> bytes:
    """Of at least so many bytes."""
    encoded = bytearray()
    while value >= 0x80 or len(encoded) + 1 < num_bytes:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def field(number: int, kind: int, content: bytes) -> bytes:
    length = varint(len(content)) if kind == 2 else b""
    return varint(number << 3 | kind) + length + content


# Fields of Blocks in any order and number, known and unknown, of the right and of wrong types.
FIELDS = st.one_of(
    st.builds(field, st.integers(0, 20), st.just(0), st.builds(varint, U32, st.integers(1, 11))),
    st.builds(field, st.integers(0, 20), st.just(2), st.binary(max_size=20)),
    st.builds(field, st.integers(0, 20), st.just(5), st.binary(min_size=4, max_size=4)),
    st.builds(field, st.integers(0, 20), st.just(1), st.binary(min_size=8, max_size=8)),
    st.builds(field, st.integers(0, 20), st.sampled_from([3, 4, 6, 7]), st.just(b"")),
    st.binary(max_size=12).map(lambda data: field(11, 2, data)),
)


def assert_read_alike(message: bytes) -> None:
    try:
        expected = handoff_pb2.PrefillFrame.FromString(message)
    except DecodeError:
        with pytest.raises(DecodeError):
            parse(message)
        return
    got = read_like_protobuf(parse(message))
    assert got.SerializeToString(deterministic=True) == expected.SerializeToString(
        deterministic=True
    )


@given(
    before=st.lists(FIELDS, max_size=6),
    data=st.binary(max_size=12),
    length_bytes=st.integers(1, 11),
    after=st.one_of(st.just(b""), FIELDS),
    wrong=st.sampled_from([0, 0, 0, -1, 1]),
)
@example(before=[field(12, 2, b"")], data=b"x", length_bytes=1, after=b"", wrong=0)
@example(before=[], data=b"x", length_bytes=1, after=field(12, 2, b""), wrong=0)
@example(before=[field(11, 2, b"y")], data=b"x", length_bytes=1, after=b"", wrong=0)
def test_any_layout_is_read_as_protobuf_reads_it(
    before: list[bytes], data: bytes, length_bytes: int, after: bytes, wrong: int
) -> None:
    last = b"\x5a" + varint(len(data), length_bytes) + data
    blocks = b"".join(before) + last
    message = b"\x2a" + varint(len(blocks) + wrong, length_bytes) + blocks + after

    assert_read_alike(message)


@given(place=PLACES, data=st.binary(max_size=20), cut=st.integers(0, 99), change=st.binary())
def test_hostile_bytes_are_read_as_protobuf_reads_them(
    place: handoff_pb2.Blocks, data: bytes, cut: int, change: bytes
) -> None:
    message = with_data(place, data).SerializeToString()
    cut %= len(message) + 1

    assert_read_alike(message[:cut])
    assert_read_alike(message[:cut] + change)
    assert_read_alike(message[:cut] + change + message[cut + len(change) :])

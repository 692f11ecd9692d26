"""PrefillFrames on the wire: those with pages inside pass protobuf by.

Protobuf copies a bytes field when it is set, twice when the message is encoded, when it is decoded,
and each time that it is read. Here pages are copied once, into the message that leaves, and not at
all out of one that has come. The bytes are a message of the .proto with `data` last; what is laid
out otherwise is left to protobuf. Knows nothing of streams.
"""

from collections.abc import Sequence
from typing import Any

from baton.wire.v1 import handoff_pb2

# A frame as a sender makes it, or what it is on the wire.
OutFrame = handoff_pb2.PrefillFrame | bytes

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_BLOCKS_TAG = handoff_pb2.PrefillFrame.BLOCKS_FIELD_NUMBER << 3 | _LENGTH
_DATA_TAG = handoff_pb2.Blocks.DATA_FIELD_NUMBER << 3 | _LENGTH
_MAX_VARINT_BYTES, _MAX_LENGTH_BYTES = 10, 5
# Fields beside the payload.
_HEADER_FIELDS = frozenset(
    field.number for field in handoff_pb2.Blocks.DESCRIPTOR.fields if field.containing_oneof is None
)


def encode_blocks(blocks: handoff_pb2.Blocks, pages: Sequence[memoryview]) -> bytes:
    """The PrefillFrame of `blocks`, which has no payload yet, with these pages as its `data`."""
    num_bytes = sum(map(len, pages))
    head = b"%b%c%b" % (blocks.SerializeToString(), _DATA_TAG, _varint(num_bytes))
    return b"".join((b"%c%b" % (_BLOCKS_TAG, _varint(len(head) + num_bytes)), head, *pages))


def serialize(frame: OutFrame) -> bytes:
    """The bytes of a frame that leaves: already serialized ones as they are."""
    return frame if isinstance(frame, bytes) else frame.SerializeToString()


def parse(message: bytes) -> Any:
    """A PrefillFrame, or an InlineFrame over `message`. Raises protobuf's DecodeError."""
    found = _find_data(message)
    if found is None:
        return handoff_pb2.PrefillFrame.FromString(message)
    start, end, data = found
    blocks = handoff_pb2.Blocks.FromString(message[start:end])
    return InlineFrame(InlineBlocks(blocks, memoryview(message)[data:]))


class InlineFrame:
    """To be read like a PrefillFrame that has blocks."""

    __slots__ = ("blocks",)

    def __init__(self, blocks: "InlineBlocks") -> None:
        self.blocks = blocks

    def WhichOneof(self, group: str) -> str:
        return "blocks"


class InlineBlocks:
    """To be read like a Blocks message with `data`, which lies where it has come."""

    __slots__ = ("_message", "data")

    def __init__(self, message: handoff_pb2.Blocks, data: memoryview) -> None:
        self._message = message
        self.data = data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)

    def HasField(self, name: str) -> bool:
        return name == "data"


class _OtherLayout(Exception):
    """Legal or not: protobuf will know."""


def _find_data(message: bytes) -> tuple[int, int, int] | None:
    """Where its Blocks begin, where their data's tag is, and where the data begins, which is the
    rest of the message; None for every other layout."""
    if not message or message[0] != _BLOCKS_TAG:
        return None
    try:
        num_bytes, start = _read_length(message, 1)
        offset = start
        while message[offset] != _DATA_TAG:
            offset = _skip_field(message, offset)
        num_data_bytes, data = _read_length(message, offset + 1)
    except (_OtherLayout, IndexError):
        return None
    if start + num_bytes == data + num_data_bytes == len(message):
        return start, offset, data
    return None


def _skip_field(message: bytes, offset: int) -> int:
    """Where the field after this one begins; it is none of the payload's."""
    tag = message[offset]
    number, kind = tag >> 3, tag & 7
    if tag >= 0x80 or number not in _HEADER_FIELDS:
        raise _OtherLayout
    if kind == _VARINT:
        return _end_of_varint(message, offset + 1, _MAX_VARINT_BYTES)
    if kind == _LENGTH:
        num_bytes, start = _read_length(message, offset + 1)
        return start + num_bytes
    if kind in (_FIXED32, _FIXED64):
        return offset + (5 if kind == _FIXED32 else 9)
    raise _OtherLayout


def _read_length(message: bytes, offset: int) -> tuple[int, int]:
    """A length, and where it ends."""
    end = _end_of_varint(message, offset, _MAX_LENGTH_BYTES)
    value = 0
    for byte in reversed(message[offset:end]):
        value = value << 7 | byte & 0x7F
    return value, end


def _end_of_varint(message: bytes, offset: int, max_bytes: int) -> int:
    for end in range(offset, offset + max_bytes):
        if message[end] < 0x80:
            return end + 1
    raise _OtherLayout


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)

"""Messages as a peer of a newer protocol version sends them: with unknown fields."""

from collections.abc import Iterable
from typing import TypeVar

from google.protobuf.message import Message

# Field 1000, three bytes.
UNKNOWN_FIELD = b"\xc2\x3e\x03new"

M = TypeVar("M", bound=Message)


def from_the_future(message: M) -> M:
    """A copy of a message with an unknown field in it and in every message inside it."""
    newer = type(message)()
    newer.CopyFrom(message)
    _extend(newer)
    return newer


def _extend(message: Message) -> None:
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        parts: Iterable[Message] = [value] if isinstance(value, Message) else value
        for part in parts:
            _extend(part)
    message.MergeFromString(UNKNOWN_FIELD)


def unknown_frame(kind: type[M], **numbers: int) -> M:
    """A frame with unknown content; `numbers` are fields that all frames of its kind have."""
    frame = kind(**numbers)
    frame.MergeFromString(UNKNOWN_FIELD)
    return frame

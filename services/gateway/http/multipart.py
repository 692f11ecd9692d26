"""Forms with files (multipart/form-data), read a piece at a time."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser

from baton.wire.failures import InvalidRequest, quoted

# Parameters of a head take quadratic time to read: those of 30 KB take half a second.
_MAX_HEAD_BYTES = 2048
_MAX_PARTS = 20


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One field of a form. `filename`: None where it is not a file."""

    name: str
    filename: str | None


def boundary_of(content_type: str) -> bytes:
    """The boundary that a Content-Type header names. Raises InvalidRequest."""
    message = Message()
    message["content-type"] = content_type if len(content_type) <= _MAX_HEAD_BYTES else ""
    boundary = message.get_boundary()
    if message.get_content_type() != "multipart/form-data" or not boundary:
        raise InvalidRequest(
            f"content-type: got {quoted(content_type)}; expected multipart/form-data",
            reason="unsupported_media_type",
            param="content-type",
        )
    return boundary.encode("utf-8", "replace")


async def parts_of(
    body: AsyncIterator[bytes], boundary: bytes
) -> AsyncGenerator[tuple[Part, bytes]]:
    """The pieces of a form's fields, each with the field that it belongs to; a field without
    content has an empty one. Raises InvalidRequest."""
    mark = b"\r\n--" + boundary
    # The first boundary has no line before it.
    buffer = bytearray(b"\r\n")
    part: Part | None = None
    is_in_head, num_parts = False, 0
    async for chunk in body:
        buffer += chunk
        while True:
            if is_in_head:
                if buffer.startswith(b"--"):
                    return
                end = buffer.find(b"\r\n\r\n")
                if (len(buffer) if end < 0 else end) > _MAX_HEAD_BYTES:
                    raise _malformed("the head of a field is too long")
                if end < 0:
                    break
                await asyncio.sleep(0)
                num_parts += 1
                part = _part(bytes(buffer[:end]))
                if num_parts > _MAX_PARTS:
                    raise _malformed(f"it has more than {_MAX_PARTS} fields")
                del buffer[: end + 4]
                is_in_head = False
                yield part, b""
                continue
            end = buffer.find(mark)
            piece = bytes(buffer[:end] if end >= 0 else buffer[: -len(mark)])
            if part is not None and piece:
                yield part, piece
            del buffer[: end + len(mark) if end >= 0 else len(piece)]
            if end < 0:
                break
            is_in_head = True
    raise _malformed("it has no end")


def _part(head: bytes) -> Part:
    message = HeaderParser().parsestr(head.decode("utf-8", "replace").lstrip())
    name = message.get_param("name", header="content-disposition")
    if not isinstance(name, str):
        raise _malformed("a field has no name")
    return Part(name, message.get_filename())


def _malformed(why: str) -> InvalidRequest:
    return InvalidRequest(f"the form cannot be read: {why}")

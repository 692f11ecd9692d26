"""Long messages in parts: one end cuts, the other one joins. A frame with all of a prompt of
megabytes takes tens of milliseconds to write or to read, in which an event loop does nothing else.
"""

from collections.abc import Iterator

# Half a millisecond to copy and to hand over.
PART_BYTES = 256 * 1024
# Of all messages of a stream that are not complete: 256 MiB, far more than a gateway holds.
MAX_PARTS = 1024


class TooLong(Exception):
    """The messages of a stream that are not complete have more than MAX_PARTS parts."""


def parts_of(data: bytes) -> Iterator[tuple[bytes, bool]]:
    """The parts of a message, each made when it is needed; True where more follow."""
    view = memoryview(data)
    for start in range(0, len(data), PART_BYTES):
        end = start + PART_BYTES
        yield bytes(view[start:end]), end < len(data)


class Joiner:
    """The parts of the messages of one stream that are not complete, by the ids of their calls."""

    def __init__(self) -> None:
        self._parts: dict[int, list[bytes]] = {}
        self._num_parts = 0

    def add(self, call_id: int, data: bytes, *, has_more: bool) -> bytes | None:
        """Add the next part; the whole message when it was the last. Raises TooLong."""
        parts = self._parts.get(call_id)
        if parts is None:
            if not has_more:
                return data
            parts = self._parts[call_id] = []
        parts.append(data)
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise TooLong(f"messages that are not complete have more than {MAX_PARTS} parts")
        return None if has_more else b"".join(self._take(call_id))

    def drop(self, call_id: int) -> None:
        """Forget the parts of a message that nobody waits for."""
        self._take(call_id)

    def _take(self, call_id: int) -> list[bytes]:
        parts = self._parts.pop(call_id, [])
        self._num_parts -= len(parts)
        return parts

"""Server-sent events as bytes. A hot chunk is a template around the JSON of its text only."""

import msgspec

DONE = b"data: [DONE]\n\n"
# A comment: keeps idle connections open, clients skip it.
KEEP_ALIVE = b": keep-alive\n\n"

_encode = msgspec.json.Encoder().encode


def comment(text: str) -> bytes:
    """A comment of one line."""
    return b": " + text.encode() + b"\n\n"


def data_event(payload: object) -> bytes:
    """An event with a JSON payload and no name."""
    return b"data: " + _encode(payload) + b"\n\n"


def named_event(name: str, payload: object) -> bytes:
    """An event as the Responses API has them: name and payload."""
    return b"event: " + name.encode() + b"\ndata: " + _encode(payload) + b"\n\n"


class TextTemplate:
    """An event that is the same each time but for one JSON string, wherever it stands.

    `payload` is encoded once, with MARK in the string's places.
    """

    MARK = "\u0000text\u0000"

    def __init__(self, payload: object, name: str = "") -> None:
        event = named_event(name, payload) if name else data_event(payload)
        self._parts = event.split(_encode(self.MARK))
        assert len(self._parts) > 1, "the template has no mark"

    def render(self, text: str) -> bytes:
        return _encode(text).join(self._parts)

"""The child process that parses large bodies (see `baton/system/child.py`).

JSON is parsed in one call that holds the interpreter, in a thread too: a body of 8 MB can take two
seconds, and 100 times its size in memory.
"""

from collections.abc import Callable

import msgspec

from baton.wire.failures import InvalidRequest
from services.gateway.endpoints import ENDPOINTS
from services.gateway.openai.generation import EndpointName, GenerationRequest


class Body(msgspec.Struct, array_like=True, frozen=True):
    """A body, and the endpoint that it was sent to."""

    endpoint: EndpointName
    data: bytes


class Refusal(msgspec.Struct, array_like=True, frozen=True):
    """The reason why a body is not a request; the fields are InvalidRequest's."""

    message: str
    reason: str
    param: str = ""


class Parsed(msgspec.Struct, array_like=True, frozen=True):
    """The answer of the child, which has one of the two."""

    request: GenerationRequest | None = None
    refusal: Refusal | None = None


_PARSERS = {endpoint.name: endpoint.parse for endpoint in ENDPOINTS.values()}
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Body).decode


def build_handler(setup: bytes) -> tuple[Callable[[bytes], bytes], bytes]:
    """Both setup and reply are empty; later requests are a Body, answers are Parsed."""
    return lambda request: _encode(parse(_decode(request))), b""


def parse(body: Body) -> Parsed:
    """Parse a body, or say what is wrong with it."""
    try:
        return Parsed(request=_PARSERS[body.endpoint](body.data))
    except InvalidRequest as error:
        return Parsed(refusal=Refusal(error.message, error.reason, error.param))
    except MemoryError:
        message = "the body has too many values: it takes too much memory"
        return Parsed(refusal=Refusal(message, "body_too_large"))

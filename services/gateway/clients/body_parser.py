"""Parses large bodies in a killable child, so that no body holds up the event loop."""

import msgspec

from baton.system.child import ChildDied, ChildFailed, ChildLimits, ChildProcess
from baton.system.clock import Clock
from baton.wire.failures import InternalFailure, InvalidRequest, Overloaded
from services.gateway.clients.parse_child import Body, Parsed
from services.gateway.openai.generation import EndpointName, GenerationRequest

CHILD_MODULE = "services.gateway.clients.parse_child"
# The largest body that an honest client sends takes 0.1 s, the worst one 2 s.
DEADLINE_S = 10.0
# Text of 8 MiB takes 120 MiB where one character of it is beyond 16 bits.
MIN_MEMORY_BYTES = 256 * 1024 * 1024
_MEMORY_FACTOR = 32

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Parsed).decode


class ChildBodyParser:
    """The parser of one gateway; its child starts with the first large body."""

    def __init__(self, clock: Clock, max_body_bytes: int) -> None:
        memory_bytes = max(MIN_MEMORY_BYTES, _MEMORY_FACTOR * max_body_bytes)
        self._child = ChildProcess(
            CHILD_MODULE, clock, limits=ChildLimits(memory_bytes=memory_bytes)
        )

    async def parse(self, endpoint: EndpointName, body: bytes) -> GenerationRequest:
        """Parse a body. Raises InvalidRequest; Overloaded when it takes too long."""
        try:
            answer = await self._child.call(_encode(Body(endpoint, body)), deadline_s=DEADLINE_S)
        except ChildDied as error:
            raise InternalFailure("the process that parses bodies has ended") from error
        except ChildFailed as error:
            message = "the body could not be parsed in time"
            raise Overloaded(message, retry_after_s=1) from error
        parsed = _decode(answer)
        if parsed.refusal is not None:
            refusal = parsed.refusal
            raise InvalidRequest(refusal.message, reason=refusal.reason, param=refusal.param)
        assert parsed.request is not None
        return parsed.request

    async def close(self) -> None:
        """End the child."""
        await self._child.close()

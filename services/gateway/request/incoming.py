"""A request as it comes in, and where its answer goes: what HTTP edge and pipeline share."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from baton.system.clock import Clock
from baton.wire.v1 import failure_pb2
from services.gateway.openai.endpoints import Endpoint
from services.gateway.openai.generation import Delta, GenerationRequest, Identity, Usage
from services.gateway.request.deadlines import Deadlines


@dataclass(frozen=True, slots=True)
class IncomingRequest:
    """A request as it came in. `authorization` is the header's value; `deadline_s` the total,
    `first_token_s` and `token_gap_s` what the client asked for instead of this gateway's limits.

    `usage_id` is what quota knows it by. `read_body` brings the body, once; it is called when the
    sender is known. Raises BatonError.
    """

    request_id: str
    usage_id: str
    endpoint: Endpoint
    read_body: Callable[[], Awaitable[bytes]]
    authorization: str | None
    traceparent: str = ""
    # Empty = not known.
    client_address: str = ""
    deadline_s: float = 600.0
    first_token_s: float | None = None
    token_gap_s: float | None = None

    def deadlines(self, first_token_s: float, token_gap_s: float, clock: Clock) -> Deadlines:
        """Its deadlines, counted from now, with this gateway's limits for what was not asked."""
        return Deadlines(
            self.deadline_s,
            first_token_s if self.first_token_s is None else self.first_token_s,
            token_gap_s if self.token_gap_s is None else self.token_gap_s,
            clock,
        )


@dataclass(frozen=True, slots=True)
class Head:
    """The numbers in the response's headers. Stage times in seconds, in order."""

    stages: dict[str, float]
    limits: failure_pb2.LimitState | None
    # The limits are this gateway's own: quota cannot be asked.
    degraded: bool = False


class Client(Protocol):
    """The client of one request, as far as it may have left."""

    @property
    def gone_reason(self) -> str:
        """Why the client is gone, once the request was cancelled."""

    @property
    def gone_s(self) -> float | None:
        """When it left, on the gateway's clock; None when it did not."""


class AnswerSink(Protocol):
    """The destination of one answer, in the form that its request asked for. Methods return when
    the client's socket accepted what they wrote; that is what the worker's credit follows."""

    async def started(self, head: Head) -> None:
        """The first token is there."""

    async def deltas(self, batch: list[Delta]) -> None:
        """New text, in order."""

    async def finished(self, usage: Usage, head: Head) -> None:
        """All choices ended and the request is settled."""


class Sink(Client, Protocol):
    """The client as the destination of an answer, before its form is known."""

    def opened(self, identity: Identity, request: GenerationRequest) -> AnswerSink:
        """Open the answer's sink: the request is valid, its model known, its defaults filled in."""

"""A request as it comes in, and the sink of its answer: the border of HTTP edge and pipeline."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from baton.system.clock import Clock
from baton.wire.v1 import failure_pb2
from services.gateway.openai.endpoints import Endpoint
from services.gateway.openai.generation import Delta, GenerationRequest, Identity, Usage
from services.gateway.tenants.principal import KnownKey, VouchedIdentity

# A peer that misses a call's deadline is taken for unwell, and a client's short timeout must not
# bring that about: with this margin the request's own end comes first, and cancels the call.
CALL_MARGIN_S = 0.05


class Deadlines:
    """The deadlines of a request: in all, to its first token, between two tokens.

    They count from the moment of creation. The timeouts in a client's headers replace this
    gateway's own. Deadlines travel as remaining time: in frames to the workers, and as the deadline
    of a call to another service.
    """

    def __init__(
        self, total_s: float, first_token_s: float | None, token_gap_s: float, clock: Clock
    ) -> None:
        """Without `first_token_s` the first token may take as long as the whole request: routers
        bound the time in their queues, and workers that stand still are ejected."""
        self.token_gap_s = token_gap_s
        self._clock = clock
        self._ends_s = clock.now() + total_s
        self._due_s = self._ends_s
        if first_token_s is not None:
            self._due_s = min(clock.now() + first_token_s, self._ends_s)

    @property
    def left_s(self) -> float:
        """Seconds until the whole request must be done; negative after that."""
        return self._ends_s - self._clock.now()

    @property
    def first_token_left_s(self) -> float:
        """Seconds until its first token is due, or the first after a migration; negative after
        that."""
        return self._due_s - self._clock.now()

    def await_next_token(self) -> None:
        """Set when the next token is due of a stream that migrates: for its client the migration is
        a gap between two tokens."""
        self._due_s = min(self._clock.now() + self.token_gap_s, self._ends_s)

    def of_call(self, limit_s: float) -> float:
        """The deadline of a call that ends with the request and takes `limit_s` at most."""
        return min(limit_s, max(self.left_s, 0.0) + CALL_MARGIN_S)


class Repeated(Exception):
    """The request was answered before, and gets that answer again."""


@dataclass(frozen=True, slots=True)
class Head:
    """The numbers in the response's headers. Stage times in seconds, in order."""

    stages: dict[str, float]
    limits: failure_pb2.LimitState | None
    # The limits are this gateway's own, because quota does not answer.
    degraded: bool = False
    # The pick's explanation as JSON, where the client asked for it.
    explanation: str = ""


@dataclass(frozen=True, slots=True)
class IncomingRequest:
    """A request as it came in. `authorization` is the header's value, what a certificate vouches
    for, or the key of a batch, of which the request is a line; `deadline_s` the time for
    the whole request; `first_token_s` is the client's own time for the first token, and
    `token_gap_s` replaces this gateway's limit.

    `request_id` is unique over all gateways; `client_request_id` is whatever the client calls it.
    `read_body` is called once, when the client is authenticated and there is room for
    `num_body_bytes`, the length that the client told (0: none). It calls its argument with the
    bytes that are there, and raises BatonError. There is a field for each header that the gateway
    reads, hence many.
    """

    request_id: str
    endpoint: Endpoint
    read_body: Callable[[Callable[[int], None]], Awaitable[bytes]]
    authorization: str | VouchedIdentity | KnownKey | None
    num_body_bytes: int = 0
    client_request_id: str = ""
    # The trace context of a caller that may decide about sampling: Envoy, or a trusted client.
    traceparent: str = ""
    # Of others (the client, the batch), with what they are to the request.
    links: tuple[tuple[str, str], ...] = ()
    # The path of its endpoint; empty for the line of a batch.
    route: str = ""
    client_address: str | None = None
    deadline_s: float = 600.0
    first_token_s: float | None = None
    token_gap_s: float | None = None
    wants_explanation: bool = False
    # Nobody waits for its answer: others go first.
    is_batch: bool = False
    # Is given, at the beginning, the function that tells the headers at any later time.
    follow: Callable[[Callable[[], Head]], None] | None = None
    # Is called with the tenant and the body, and may raise BatonError or Repeated.
    on_body: Callable[[str, bytes], Awaitable[None]] | None = None

    @property
    def first_token_allowance_s(self) -> float:
        """The time that the client gave for the first token, from the request's arrival."""
        if self.first_token_s is None:
            return self.deadline_s
        return min(self.first_token_s, self.deadline_s)

    def deadlines(self, token_gap_s: float, clock: Clock) -> Deadlines:
        """Its deadlines, counted from now. `token_gap_s` is this gateway's limit, for a client that
        left it open."""
        return Deadlines(
            self.deadline_s,
            self.first_token_s,
            token_gap_s if self.token_gap_s is None else self.token_gap_s,
            clock,
        )


class Client(Protocol):
    """The client of one request, which may leave."""

    @property
    def gone_reason(self) -> str:
        """The reason of a request that was cancelled."""

    @property
    def gone_s(self) -> float | None:
        """The time at which it left, on the gateway's clock; None when it did not."""

    @property
    def has_left(self) -> bool:
        """True when it has left, also where nobody has noticed yet."""


class AnswerSink(Protocol):
    """The destination of one answer, in the form that its request asked for. Methods return when
    the client's socket accepted what they wrote; that is what the worker's credit follows."""

    async def started(self, head: Head) -> None:
        """Start the answer: its first token is there."""

    async def deltas(self, batch: list[Delta]) -> None:
        """Write new text, in order."""

    def offer(self, batch: list[Delta], now_s: float) -> bool:
        """Write new text, at this time, if the client's socket accepts it at once; True if so."""

    async def finished(self, usage: Usage, head: Head) -> None:
        """End the answer: all choices have ended and the request is settled."""


class Sink(Client, Protocol):
    """The client as the destination of an answer, before its form is known."""

    def opened(self, identity: Identity, request: GenerationRequest) -> AnswerSink:
        """Open the answer's sink: the request is valid, its model known, its defaults filled in."""

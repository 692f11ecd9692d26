"""One request as people and dashboards see it: its tenant, its model, its stages and times."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from baton.runtime.telemetry import Span, StageTimer, start_span
from baton.system.clock import Clock
from services.gateway.clients.protocols import CallContext
from services.gateway.request.incoming import Client, Head, IncomingRequest
from services.gateway.request.usage import RequestUsage
from services.gateway.tenants.lease import Lease


class Stage(StrEnum):
    """A stage of a request, as Server-Timing, spans, metrics and usage records name it. Workers add
    stages of their own."""

    AUTH = "auth"
    VALIDATE = "validate"
    TOKENIZE = "tokenize"
    RESERVE = "reserve"
    PICK = "pick"
    QUEUE = "queue"
    PREFILL = "prefill"
    DECODE = "decode"
    MIGRATION = "move"
    SETTLE = "settle"
    # Only the client has still to take the answer.
    FLUSH = "flush"


class RequestTrace:
    """The span, the timer and the counts of one request, from its arrival on.

    It exists before the request is authenticated; the names that are not known yet are empty, as
    they are in the access line.
    """

    def __init__(self, incoming: IncomingRequest, client: Client, clock: Clock) -> None:
        self.incoming = incoming
        self.client = client
        self.usage = RequestUsage()
        self.span = start_span(
            "gateway.request", traceparent=incoming.traceparent, request_id=incoming.request_id
        )
        self.timer = StageTimer(clock)
        self.started_unix_s = clock.unix()
        self.stage = Stage.AUTH
        self.tenant = ""
        self.model_name = ""

    @property
    def request_id(self) -> str:
        return self.incoming.request_id

    @contextmanager
    def measure(self, stage: Stage, migration: Span | None = None) -> Iterator[Span]:
        """Count the time in here as this stage, also when it fails; all of a `migration` is one
        stage. The span is below the request's, or the migration's."""
        if self.client.gone_s is None and migration is None:
            self.stage = stage
        try:
            with start_span(
                stage, parent=migration or self.span, request_id=self.request_id
            ) as span:
                yield span
        finally:
            self.timer.mark(Stage.MIGRATION if migration else stage)

    def call_context(self, span: Span, deadline_s: float) -> CallContext:
        """The context of a call that belongs to a stage."""
        return CallContext(self.request_id, deadline_s, span.traceparent)

    def head(self, lease: Lease) -> Head:
        """The headers of the response, as far as its stages have come."""
        return Head(dict(self.timer.stages), lease.limits, lease.local)

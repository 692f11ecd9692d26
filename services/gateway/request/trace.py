"""One request as people and dashboards see it: its tenant, its model, its stages and times."""

import asyncio
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType

from opentelemetry.trace import SpanKind

from baton.runtime.telemetry import Span, StageTimer, start_span
from baton.system.clock import Clock
from baton.wire.engine_time import add_time
from baton.wire.failures import Cancelled
from baton.wire.v1.failure_pb2 import EngineTime
from services.gateway import instruments
from services.gateway.clients.protocols import CallContext
from services.gateway.openai.generation import Usage
from services.gateway.request.attempt_spans import AttemptSpans
from services.gateway.request.incoming import Client, Head, IncomingRequest
from services.gateway.routing.explanations import Explanation
from services.gateway.tenants.lease import Lease
from services.gateway.text.choice_text import ChoiceText

# In OpenTelemetry's words: whose conventions, beyond its own, these spans and metrics follow.
PROVIDER = "baton"


class Stage(StrEnum):
    """A stage of a request, as Server-Timing, spans, metrics and usage records name it. Workers add
    stages of their own."""

    AUTH = "auth"
    VALIDATE = "validate"
    RESERVE = "reserve"
    TOKENIZE = "tokenize"
    SAFETY = "safety"
    PICK = "pick"
    QUEUE = "queue"
    PREFILL = "prefill"
    DECODE = "decode"
    MIGRATION = "move"
    SETTLE = "settle"
    # Only the client has still to take the answer.
    FLUSH = "flush"


# Calls to other processes.
_CALLS = frozenset(
    {Stage.AUTH, Stage.RESERVE, Stage.TOKENIZE, Stage.SAFETY, Stage.PICK, Stage.SETTLE}
)


@dataclass(slots=True, eq=False)
class RequestUsage:
    """The tokens that one request has used so far, over all its choices and attempts.

    They are for its answer, its access line and its usage record; so is what they cost.
    """

    num_prompt_tokens: int = 0
    choices: Sequence[ChoiceText] = ()
    # What a worker was asked to do, also where it had no room. Each has this number as its epoch.
    num_submits: int = 0
    # Of those the refusals for room, which are no attempts (decision 0004).
    num_refusals: int = 0
    # Attempts that failed: they may have computed blocks.
    num_failed_attempts: int = 0
    num_received: int = 0
    # A worker produced a token of it, or was at work on it when the client left. A prompt that
    # never came so far (refused, queued, lost with its worker) costs nothing.
    prompt_was_read: bool = False
    # Cached prompt tokens by choice; only of choices whose first token came with the first attempt.
    num_cached: dict[int, int] = field(default_factory=dict)
    # What all attempts cost that have ended, as far as their workers have told.
    engine: EngineTime = field(default_factory=EngineTime)

    @property
    def num_attempts(self) -> int:
        """The attempts that workers made."""
        return self.num_submits - self.num_refusals

    @property
    def num_cached_tokens(self) -> int:
        """The prompt tokens that no worker computed for this request, for any of its choices."""
        return min(self.num_cached.values(), default=0)

    @property
    def num_output_tokens(self) -> int:
        return sum([choice.num_tokens for choice in self.choices])

    @property
    def num_reasoning_tokens(self) -> int:
        return sum([choice.num_reasoning_tokens for choice in self.choices])

    @property
    def num_wasted_tokens(self) -> int:
        """The tokens that workers produced and no choice has."""
        return self.num_received - self.num_output_tokens

    @property
    def finish_reasons(self) -> str:
        """The reason of each choice's end, in order: `insufficient_quota` for a spent budget. It is
        `stop` without choices."""
        reasons = (
            "insufficient_quota" if choice.is_unpaid else choice.finish_reason or ""
            for choice in self.choices
        )
        return ",".join(reasons) or "stop"

    def took_cached(self, num_cached: dict[int, int]) -> None:
        """Note the cached tokens of an attempt that just ended. Only the first attempt counts: what
        a later one finds in a cache may have been computed for this request."""
        if not self.num_cached and self.num_failed_attempts == 0:
            self.num_cached = num_cached

    def took_time(self, spent: EngineTime, num_received: int, *, has_failed: bool) -> None:
        """Note what an attempt cost that just ended, with `num_received` tokens. Of one that failed
        the prefill has to be done again, and its decode if it brought no token."""
        add_time(self.engine, spent)
        if has_failed:
            self.engine.migrated_us += spent.prefill_us - spent.preempted_us
            self.engine.migrated_us += 0 if num_received else spent.decode_us

    def engine_time(self, outcome: str) -> EngineTime:
        """What the request cost that ended with this outcome, and what of it was wasted."""
        engine = EngineTime()
        engine.CopyFrom(self.engine)
        if not self.choices or outcome != self.finish_reasons:
            wasted_us = engine.preempted_us + engine.migrated_us
            engine.cancelled_us = engine.prefill_us + engine.decode_us - wasted_us
        elif self.num_wasted_tokens:
            engine.cancelled_us = engine.decode_us * self.num_wasted_tokens // self.num_received
        return engine

    def for_client(self, ended_unix_s: int) -> Usage:
        """The counts in the client's answer."""
        return Usage(
            self.num_prompt_tokens,
            self.num_cached_tokens,
            self.num_output_tokens,
            self.num_reasoning_tokens,
            ended_unix_s,
        )


class RequestTrace:
    """The span, the timer and the counts of one request, from its arrival on.

    It exists before the request is authenticated; the names that are not known yet are empty, as
    they are in the access line.
    """

    def __init__(
        self,
        incoming: IncomingRequest,
        client: Client,
        clock: Clock,
        whole: "RequestTrace | None" = None,
    ) -> None:
        """`whole`: the request of which this is one prompt."""
        self.incoming = incoming
        self.request_id = incoming.request_id
        self.client = client
        self.usage = RequestUsage()
        self.span = _span_of(incoming, whole)
        self.attempts = AttemptSpans(self.span, incoming.request_id, clock)
        self.timer = StageTimer(clock)
        self.started_unix_s = clock.unix()
        self._stage = Stage.AUTH
        # From its arrival to its first token, once that is there.
        self.first_token_s: float | None = None
        self.is_streamed = False
        self.tenant = ""
        self.model_name = ""
        # From its reservation on.
        self.lease: Lease | None = None
        # While it is served. It is due when the request is cancelled by its id.
        self.timeout: asyncio.Timeout | None = None
        self.is_cancelled = False
        # From the first pick on.
        self.explanation: Explanation | None = None

    @property
    def stage(self) -> Stage:
        """The stage that it is in."""
        return self._stage

    @stage.setter
    def stage(self, stage: Stage) -> None:
        if stage is not self._stage:
            self._stage = stage
            self.timer.enter()

    @property
    def metered_name(self) -> str:
        """The label of its model in metrics."""
        return instruments.METERING.label(self.model_name)

    @property
    def gen_ai_labels(self) -> tuple[str, str, str]:
        """Operation, provider and model, as OpenTelemetry's metrics have them."""
        return self.incoming.endpoint.operation, PROVIDER, self.metered_name

    @property
    def has_timed_out(self) -> bool:
        """Its time is over. The timer may be early by a turn of the event loop."""
        return self.timeout is not None and self.timeout.expired() and not self.is_cancelled

    def cancel(self) -> None:
        """End the request, which its tenant wants no more."""
        if self.timeout is not None and not self.is_cancelled and not self.timeout.expired():
            self.is_cancelled = True
            self.timeout.reschedule(-math.inf)

    def measure(self, stage: Stage, migration: Span | None = None) -> "Measured":
        """Count the time in this block as this stage, also when it fails; all of a `migration` is
        one stage. The span is below the request's, the migration's, or that of a wait for room.

        Raises Cancelled, instead of beginning a stage, when the client has left; what was reserved
        is settled all the same.
        """
        if stage is not Stage.SETTLE and self.client.has_left:
            raise Cancelled("the client left")
        if self.client.gone_s is None and migration is None:
            self.stage = stage
        kind = SpanKind.CLIENT if stage in _CALLS else SpanKind.INTERNAL
        above = self.attempts.wait or migration or self.span
        span = start_span(stage, parent=above, request_id=self.request_id, kind=kind)
        return Measured(span, self.timer, Stage.MIGRATION if migration else stage)

    @contextmanager
    def judging(self) -> Iterator[None]:
        """Count the time in here, within another stage, as a wait for the safety hook."""
        self.timer.mark(self.stage)
        try:
            yield
        finally:
            self.timer.mark(Stage.SAFETY)

    def call_context(self, span: Span, deadline_s: float) -> CallContext:
        """The context of a call that belongs to a stage."""
        return CallContext(self.request_id, deadline_s, span.traceparent)

    def head(self) -> Head:
        """The headers of the response, as far as its stages have come."""
        lease = self.lease
        explanation = ""
        if self.explanation is not None and self.incoming.wants_explanation:
            explanation = self.explanation.to_json().decode()
        stages = dict(self.timer.stages)
        if lease is None:
            return Head(stages, None, explanation=explanation)
        return Head(stages, lease.limits, lease.local, explanation)


def _span_of(incoming: IncomingRequest, whole: RequestTrace | None) -> Span:
    """The span of a request, or of one of its prompts. It gets its whole name with its model."""
    request_id = incoming.request_id
    if whole is not None:
        return start_span("prompt", parent=whole.span, request_id=request_id)
    span = start_span(
        incoming.endpoint.operation,
        traceparent=incoming.traceparent,
        request_id=request_id,
        # Nobody waits for the line of a batch.
        kind=SpanKind.CONSUMER if incoming.is_batch else SpanKind.SERVER,
    )
    for traceparent, relation in incoming.links:
        span.link(traceparent, relation)
    return span


class Measured:
    """The block of one stage: its span, and the mark at its end."""

    __slots__ = ("_span", "_stage", "_timer")

    def __init__(self, span: Span, timer: StageTimer, stage: Stage) -> None:
        self._span = span
        self._timer = timer
        self._stage = stage

    def __enter__(self) -> Span:
        return self._span

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._span.is_recorded:
            self._span.close(kind, error)
        self._timer.mark(self._stage)

"""Everything known about one request while it runs, and what is left of it at the end: usage for
the client, the usage record, the access line. Decides nothing."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from baton.runtime.telemetry import Span, StageTimer
from baton.system.clock import Clock
from baton.wire.prefix_hash import TOKEN_BYTES
from baton.wire.v1 import failure_pb2, quota_pb2, tokenizer_pb2
from services.gateway.openai.endpoints import Endpoint
from services.gateway.openai.generation import Delta, GenerationRequest, Identity, Usage
from services.gateway.request.deadlines import Deadlines
from services.gateway.routing.crash_record import CrashRecord
from services.gateway.routing.models import ServedModel
from services.gateway.tenants.auth import Principal
from services.gateway.tenants.leases import Lease
from services.gateway.text.choice_text import ChoiceText
from services.gateway.text.detokenize import TextModel
from services.gateway.text.prompt_echo import PromptEcho


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request as it came in. `authorization` is the header's value; `deadline_s` the total,
    `first_token_s` and `token_gap_s` what the client asked for instead of this gateway's limits.

    `bill_id` is what quota knows it by, if not by its `request_id`. `read_body` brings the body,
    once; it is called when the sender is known. Raises BatonError.
    """

    request_id: str
    endpoint: Endpoint
    read_body: Callable[[], Awaitable[bytes]]
    authorization: str | None
    bill_id: str = ""
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
    """What the response's headers tell. Stage times in seconds, in order."""

    stages: dict[str, float]
    limits: failure_pb2.LimitState | None
    # The limits are this gateway's own: quota cannot be asked.
    degraded: bool = False


class Sink(Protocol):
    """Where the answer goes. Methods return when the client's socket accepted what they wrote;
    that is what the worker's credit follows."""

    @property
    def gone_reason(self) -> str:
        """Why the client is gone, once the request was cancelled."""

    @property
    def gone_s(self) -> float | None:
        """When it left, on the gateway's clock; None when it did not."""

    def opened(self, identity: Identity, request: GenerationRequest) -> None:
        """The request is valid and its model known; defaults are filled in."""

    async def started(self, head: Head) -> None:
        """The first token is there."""

    async def deltas(self, batch: list[Delta]) -> None:
        """New text, in order."""

    async def finished(self, usage: Usage, head: Head) -> None:
        """All choices ended and the request is settled."""


@dataclass(slots=True, eq=False)
class Exchange:
    """One request on its way through the pipeline; each stage fills in its part."""

    arrival: Arrival
    sink: Sink
    timer: StageTimer
    deadlines: Deadlines
    span: Span
    started_unix_s: float
    principal: Principal | None = None
    request: GenerationRequest | None = None
    model: ServedModel | None = None
    # How it ended, once that is known.
    outcome: str = "internal"
    # What it is at: the name of a stage, or "flush" when only the client has still to take it.
    stage: str = "auth"
    progress: "Progress" = field(default_factory=lambda: Progress())

    @property
    def request_id(self) -> str:
        return self.arrival.request_id

    @property
    def bill_id(self) -> str:
        """What quota knows it by."""
        return self.arrival.bill_id or self.arrival.request_id


@dataclass(slots=True, eq=False)
class Progress:
    """What was promised to a request and what it used so far."""

    prompt: tokenizer_pb2.EncodeResponse | None = None
    text_model: TextModel | None = None
    max_tokens: int = 0
    seed: int = 0
    cache_key: bytes = b""
    # Output tokens of one choice that are reserved at first.
    num_expected_tokens: int = 0
    lease: Lease | None = None
    limits: failure_pb2.LimitState | None = None
    echo: PromptEcho | None = None
    choices: list[ChoiceText] = field(default_factory=list)
    num_attempts: int = 0
    # Attempts that ended in more than a refusal for room: they may have computed blocks.
    num_failed_attempts: int = 0
    num_received: int = 0
    crashes: CrashRecord = field(default_factory=CrashRecord)
    # A worker produced a token of it, or was at work on it when the client left. A prompt that
    # never got that far (refused, queued, lost with its worker) costs nothing.
    prompt_was_read: bool = False
    # By choice; only the choices whose first token came, and came with the first attempt.
    num_cached: dict[int, int] = field(default_factory=dict)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt.token_ids) // TOKEN_BYTES if self.prompt else 0

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that nobody computed for this request: not for any of its choices."""
        return min(self.num_cached.values(), default=0)

    def took_cached(self, num_cached: dict[int, int]) -> None:
        """What an attempt that just ended told. The first one counts: what a later one finds in a
        cache may have been computed for this request."""
        if not self.num_cached and self.num_failed_attempts == 0:
            self.num_cached = num_cached

    @property
    def num_output_tokens(self) -> int:
        return sum(choice.num_tokens for choice in self.choices)

    def usage(self) -> Usage:
        return Usage(self.num_prompt_tokens, self.num_cached_tokens, self.num_output_tokens)


def principal_of(x: Exchange) -> Principal:
    assert x.principal is not None, "authenticated first"
    return x.principal


def request_of(x: Exchange) -> GenerationRequest:
    assert x.request is not None, "validated before"
    return x.request


def model_of(x: Exchange) -> ServedModel:
    assert x.model is not None, "validated before"
    return x.model


def lease_of(x: Exchange) -> Lease:
    assert x.progress.lease is not None, "reserved before"
    return x.progress.lease


def head_of(x: Exchange) -> Head:
    lease = x.progress.lease
    degraded = lease is not None and lease.local
    return Head(dict(x.timer.stages), x.progress.limits, degraded)


def usage_record(x: Exchange) -> quota_pb2.UsageRecord:
    """What a request is billed for. Its stages add up to its wall time."""
    assert x.principal is not None, "only requests that were reserved are recorded"
    assert x.request is not None, "only admitted requests are recorded"
    assert x.model is not None, "only admitted requests are recorded"
    progress = x.progress
    return quota_pb2.UsageRecord(
        request_id=x.bill_id,
        tenant=x.principal.tenant,
        key_id=x.principal.key_id,
        model=x.request.model,
        model_fp=x.model.model_fp,
        started_unix_ms=int(x.started_unix_s * 1000),
        num_prompt_tokens=progress.num_prompt_tokens if progress.prompt_was_read else 0,
        num_cached_tokens=progress.num_cached_tokens if progress.prompt_was_read else 0,
        num_output_tokens=progress.num_output_tokens,
        num_wasted_tokens=progress.num_received - progress.num_output_tokens,
        finish_reason=x.outcome,
        stages=x.timer.to_wire(),
        wall_us=round(x.timer.wall_s * 1e6),
        endpoint=x.arrival.endpoint.name,
        num_attempts=progress.num_attempts,
    )

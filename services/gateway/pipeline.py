"""A request from top to bottom; the only file that knows the order.

    authenticate -> validate -> tokenize -> reserve -> pick -> submit -> tokens -> settle

A refusal or a loss before the first token picks again, without the worker that failed and under
a higher epoch. Whatever was reserved is settled exactly once, however the request ends, and the
sink's `finished` comes only after that.
"""

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from baton.runtime.telemetry import Span, StageTimer, start_span
from baton.system.clock import Clock
from baton.wire.failures import BatonError, DeadlineExceeded, Unavailable
from baton.wire.prefix_hash import derive_cache_key
from baton.wire.v1 import quota_pb2, router_pb2
from services.gateway import reports, submission
from services.gateway.answer_stream import AnswerStream
from services.gateway.attempt import Attempt
from services.gateway.auth import Authenticator, Principal
from services.gateway.credit import CreditMeter
from services.gateway.detokenize import Artifacts
from services.gateway.exchange import Arrival, Exchange, Sink, head_of, usage_record
from services.gateway.generation import Delta, GenerationRequest, Identity
from services.gateway.leases import Lease, LeaseKeeper
from services.gateway.models import ModelDirectory, ServedModel
from services.gateway.outbox import Outbox
from services.gateway.ports import (
    CallContext,
    QuotaClient,
    RunInThread,
    TokenizerClient,
)
from services.gateway.quota_outage import LocalBuckets, is_outage
from services.gateway.routers import Routers
from services.gateway.worker_link import WorkerLink
from services.gateway.worker_links import WorkerLinks

AUTHENTICATE_TIMEOUT_S = 1.0
ENCODE_TIMEOUT_S = 10.0
RESERVE_TIMEOUT_S = 1.0
SETTLE_ACK_S = 0.025
MAX_FAILURES = 3
MAX_EXCLUDED = 16
# Parsing takes up to a quarter of a second a MiB; what is longer than this must not hold up others.
LARGE_BODY_BYTES = 64 * 1024
RETRIED_REASONS = frozenset({"no_room", "worker_lost", "draining", "unavailable", "handoff_failed"})


@dataclass(frozen=True, slots=True)
class Limits:
    """What the operator sets."""

    default_output_reservation: int = 512
    first_token_s: float = 30.0
    token_gap_s: float = 20.0


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that the pipeline drives."""

    clock: Clock
    rng: random.Random
    server_secret: bytes
    limits: Limits
    authenticator: Authenticator
    directory: ModelDirectory
    tokenizer: TokenizerClient
    artifacts: Artifacts
    quota: QuotaClient
    local_buckets: LocalBuckets
    leases: LeaseKeeper
    router: Routers
    links: WorkerLinks
    outbox: Outbox
    in_thread: RunInThread


class Pipeline:
    """Serves requests; any number at once."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        # Large bodies are parsed one at a time: each takes up to 100 times its size in memory.
        self._parsing_large = asyncio.Lock()

    async def run(self, arrival: Arrival, sink: Sink) -> None:
        """Serve one request to its end. Raises BatonError; the caller turns that into a status or,
        after `sink.started`, into the stream's one error event. Cancelling it frees everything."""
        parts = self._parts
        span = start_span(
            "gateway.request", traceparent=arrival.traceparent, request_id=arrival.request_id
        )
        limits, clock = parts.limits, parts.clock
        deadlines = arrival.deadlines(limits.first_token_s, limits.token_gap_s, clock)
        x = Exchange(arrival, sink, StageTimer(clock), deadlines, span, clock.unix())
        with span, reports.of_request(x):
            try:
                async with asyncio.timeout(arrival.deadline_s):
                    await self._serve(x)
            except TimeoutError:
                raise DeadlineExceeded(f"not finished within {arrival.deadline_s:.0f} s") from None

    async def _serve(self, x: Exchange) -> None:
        await self._authenticate(x)
        await self._validate(x)
        await self._tokenize(x)
        await self._reserve(x)
        try:
            await self._generate(x)
            x.outcome = ",".join(choice.finish_reason or "" for choice in x.progress.choices)
        except BatonError as error:
            x.outcome = error.reason
            raise
        except asyncio.CancelledError:
            x.outcome = "deadline_exceeded" if x.deadlines.left_s <= 0 else x.sink.gone_reason
            raise
        finally:
            await self._settle(x)
        x.stage = "flush"
        await x.sink.finished(x.progress.usage(), head_of(x))

    async def _authenticate(self, x: Exchange) -> None:
        with _stage(x, "auth") as span:
            context = _context(x, span, x.deadlines.of_call(AUTHENTICATE_TIMEOUT_S))
            x.principal = await self._parts.authenticator.authenticate(
                x.arrival.authorization, context
            )

    async def _validate(self, x: Exchange) -> None:
        with _stage(x, "validate"):
            x.request = await self._parsed(x.arrival)
            x.model = self._parts.directory.resolve(x.request.model, _principal(x).allowed_models)

    async def _parsed(self, arrival: Arrival) -> GenerationRequest:
        body = await arrival.read_body()
        if len(body) <= LARGE_BODY_BYTES:
            return arrival.endpoint.parse(body)
        async with self._parsing_large:
            return await self._parts.in_thread(partial(arrival.endpoint.parse, body))

    async def _tokenize(self, x: Exchange) -> None:
        request, model, progress = _request(x), _model(x), x.progress
        with _stage(x, "tokenize") as span:
            progress.text_model = await self._parts.artifacts.text_model(model.model_fp)
            progress.prompt = await self._parts.tokenizer.encode(
                submission.encode_request(x, self._cache_key(x)),
                _context(x, span, x.deadlines.of_call(ENCODE_TIMEOUT_S)),
            )
        submission.check(request, model, progress.num_prompt_tokens)
        room = model.max_model_len - progress.num_prompt_tokens
        progress.max_tokens = submission.max_tokens_of(request, room)
        x.request = submission.with_defaults(request, progress.text_model)
        progress.seed = submission.seed_of(request, self._parts.rng)
        x.sink.opened(
            Identity(
                request_id=x.request_id,
                created_unix_s=int(x.started_unix_s),
                model=request.model,
                model_fp=model.model_fp,
                num_choices=request.num_choices,
            ),
            x.request,
        )

    async def _reserve(self, x: Exchange) -> None:
        principal, progress = _principal(x), x.progress
        with _stage(x, "reserve") as span:
            context = _context(x, span, x.deadlines.of_call(RESERVE_TIMEOUT_S))
            answer, local = await self._reservation(x, context)
        progress.limits = answer.limits
        progress.lease = Lease(
            request_id=x.request_id,
            tenant=principal.tenant,
            key_id=principal.key_id,
            model=_request(x).model,
            num_prompt_tokens=progress.num_prompt_tokens,
            num_granted=answer.granted_output_tokens,
            hard_budget=principal.hard_budget,
            local=local,
        )
        self._parts.leases.open(progress.lease)

    async def _reservation(
        self, x: Exchange, context: CallContext
    ) -> tuple[quota_pb2.ReserveResponse, bool]:
        """The grant, and whether it is this gateway's own because quota cannot be asked."""
        principal = _principal(x)
        request = quota_pb2.ReserveRequest(
            request_id=x.request_id,
            tenant=principal.tenant,
            key_id=principal.key_id,
            model=_request(x).model,
            num_prompt_tokens=x.progress.num_prompt_tokens,
            num_output_tokens=self._expected_tokens(x) * _request(x).num_choices,
        )
        try:
            answer = await self._parts.quota.reserve(request, context)
        except asyncio.CancelledError:
            await self._let_go(x, x.sink.gone_reason)
            raise
        except BatonError as error:
            if not is_outage(error):
                raise
            try:
                return self._parts.local_buckets.reserve(principal, request), True
            except BatonError as refusal:
                if isinstance(error, DeadlineExceeded):
                    await self._let_go(x, refusal.reason)
                raise
        self._parts.local_buckets.quota_answers(principal, answer.limits)
        return answer, False

    async def _let_go(self, x: Exchange, outcome: str) -> None:
        """Quota was asked and did not answer: what it may hold for this request is freed later."""
        x.outcome = outcome
        await self._parts.outbox.put(usage_record(x))

    async def _generate(self, x: Exchange) -> None:
        """Attempts until one has brought its first token. A worker without room only sends the
        request back into the router's queue, until its first token is due; other failures count."""
        excluded: list[str] = []
        while True:
            pick = await self._pick(x, excluded)
            x.progress.num_attempts += 1
            try:
                await self._attempt(x, pick)
                return self._parts.links.crashes.finished(x.progress.crashes)
            except BatonError as error:
                x.progress.num_failed_attempts += error.reason != "no_room"
                retried = error.reason in RETRIED_REASONS and not x.progress.num_received
                crashes = x.progress.crashes
                self._parts.links.crashes.failed(crashes, error, x.progress.num_received)
                # One more pick of a request that kills cores tells the router, which refuses it.
                most = MAX_FAILURES + crashes.is_guilty
                if not retried or x.progress.num_failed_attempts >= most:
                    raise
                excluded = [*excluded[1 - MAX_EXCLUDED :], _at_fault(pick, error)]
                reports.of_retry(x, error.reason)

    async def _pick(self, x: Exchange, excluded: list[str]) -> router_pb2.PickResponse:
        clock = self._parts.clock
        request = submission.pick_request(x, self._expected_tokens(x), self._parts.server_secret)
        request.exclude_worker_ids.extend(excluded)
        self._parts.links.crashes.ask(x.progress.crashes, request)
        with _stage(x, "pick") as span:
            asked_s = clock.now()
            context = _context(x, span, x.deadlines.first_token_left_s)
            pick = await self._parts.router.pick(request, context)
            self._parts.links.crashes.picked(x.progress.crashes, pick)
            queue_s = min(pick.queue_us / 1e6, clock.now() - asked_s)
            span.set("baton.pick.reasons", pick.reasons)
        reports.of_queue(x, span, asked_s, queue_s)
        return pick

    async def _attempt(self, x: Exchange, pick: router_pb2.PickResponse) -> None:
        progress, request = x.progress, _request(x)
        assert progress.lease is not None, "reserved before"
        meter = CreditMeter(
            progress.lease,
            num_choices=request.num_choices,
            max_tokens=progress.max_tokens,
            extension_tokens=self._parts.limits.default_output_reservation * request.num_choices,
        )
        echo = submission.echo_of(x)
        progress.choices = submission.choice_texts(x, echo)
        x.stage = "prefill"
        link = self._parts.links.link_to(pick.decode)
        frame = submission.submit_frame(x, pick, meter.initial, x.deadlines.left_s)
        frame.cache_key = self._cache_key(x)
        attempt = link.submit(frame)
        stream = AnswerStream(attempt, meter, progress.choices, self._parts.clock, echo)
        try:
            self._connect(progress.lease, meter, attempt)
            await self._stream_answer(x, stream)
        except asyncio.CancelledError:
            progress.prompt_was_read = attempt.failure is None
            raise
        finally:
            await self._leave(x, stream, attempt, link)

    def _connect(self, lease: Lease, meter: CreditMeter, attempt: Attempt) -> None:
        """Let changes of the lease reach the attempt, and the attempt's needs the lease."""

        def on_change() -> None:
            if lease.lost:
                attempt.abandon(Unavailable("the quota lease was lost", reason="quota_unavailable"))
            meter.replenish()
            attempt.poke()

        lease.on_change = on_change
        meter.attach(attempt.give, lambda wanted: self._parts.leases.ask(lease, wanted))

    async def _stream_answer(self, x: Exchange, stream: AnswerStream) -> None:
        # A beam search brings its first token with its last.
        due = x.deadlines
        batch = await stream.first(due.left_s if _request(x).search else due.first_token_left_s)
        x.stage = "decode"
        prefill_s = x.timer.mark("prefill")
        reports.of_first_token(x, prefill_s, stream.prefill_stages)
        await x.sink.started(head_of(x))
        gaps = reports.TokenGaps(x, self._parts.clock)

        async def deliver(deltas: list[Delta]) -> None:
            gaps.note()
            await x.sink.deltas(deltas)

        await stream.run(batch, deliver, x.deadlines.token_gap_s)

    async def _leave(
        self, x: Exchange, stream: AnswerStream, attempt: Attempt, link: WorkerLink
    ) -> None:
        assert x.progress.lease is not None, "reserved before"
        x.progress.lease.on_change = lambda: None
        try:
            await stream.close()
        finally:
            link.forget(attempt)
            x.progress.num_received = attempt.num_received
            x.progress.prompt_was_read |= attempt.num_received > 0
            x.progress.num_cached = stream.num_cached
            x.timer.mark("decode" if attempt.num_received else "prefill")

    async def _settle(self, x: Exchange) -> None:
        assert x.progress.lease is not None, "reserved before"
        self._parts.leases.close(x.progress.lease)
        with _stage(x, "settle") as span:
            record = usage_record(x)
            acknowledged = False
            try:
                async with asyncio.timeout(SETTLE_ACK_S):
                    await self._parts.quota.settle(record, _context(x, span, SETTLE_ACK_S))
                acknowledged = True
            except (TimeoutError, BatonError):
                span.set("baton.settle.outbox", True)
            finally:
                # Also when the client leaves at this very moment: the bill is not its to stop.
                if not acknowledged:
                    await self._parts.outbox.put(record)

    def _cache_key(self, x: Exchange) -> bytes:
        return derive_cache_key(
            self._parts.server_secret, _principal(x).tenant, _request(x).cache_salt
        )

    def _expected_tokens(self, x: Exchange) -> int:
        """Output tokens of one choice that are reserved at first."""
        progress = x.progress
        if _request(x).max_tokens is not None:
            return progress.max_tokens
        return min(self._parts.limits.default_output_reservation, progress.max_tokens)


def _at_fault(pick: router_pb2.PickResponse, error: BatonError) -> str:
    """The worker that the next pick shall avoid."""
    is_prefill = error.reason == "handoff_failed" and pick.HasField("prefill")
    return pick.prefill.worker_id if is_prefill else pick.decode.worker_id


@contextmanager
def _stage(x: Exchange, name: str) -> Iterator[Span]:
    """A span below the request's, and a mark on its timer, also when the stage fails."""
    if x.sink.gone_s is None:
        x.stage = name
    try:
        with start_span(name, parent=x.span, request_id=x.request_id) as span:
            yield span
    finally:
        x.timer.mark(name)


def _context(x: Exchange, span: Span, deadline_s: float) -> CallContext:
    return CallContext(x.request_id, deadline_s, span.traceparent)


def _principal(x: Exchange) -> Principal:
    assert x.principal is not None, "authenticated first"
    return x.principal


def _request(x: Exchange) -> GenerationRequest:
    assert x.request is not None, "validated before"
    return x.request


def _model(x: Exchange) -> ServedModel:
    assert x.model is not None, "validated before"
    return x.model

"""A request from top to bottom; the only file that knows the order.

    authenticate -> validate -> tokenize -> reserve -> answer -> settle
                                                       pick -> submit -> tokens (answering.py)

Whatever was reserved is settled exactly once, however the request ends, and the sink's `finished`
comes only after that.
"""

import asyncio
from functools import partial

from baton.runtime import logs
from baton.runtime.telemetry import StageTimer, start_span
from baton.wire.failures import BatonError, DeadlineExceeded, InternalFailure
from baton.wire.prefix_hash import derive_cache_key
from baton.wire.v1 import quota_pb2
from services.gateway.clients.protocols import CallContext
from services.gateway.openai.generation import GenerationRequest, Identity
from services.gateway.request import reports, submission
from services.gateway.request.attempts import Answering
from services.gateway.request.large_bodies import LARGE_BODY_BYTES, LargeBodies
from services.gateway.request.parts import Parts
from services.gateway.request.state import (
    Arrival,
    Exchange,
    Sink,
    head_of,
    lease_of,
    model_of,
    principal_of,
    request_of,
    usage_record,
)
from services.gateway.request.timeline import call_context, stage
from services.gateway.tenants.leases import Lease
from services.gateway.tenants.quota_outage import is_outage

AUTHENTICATE_TIMEOUT_S = 1.0
ENCODE_TIMEOUT_S = 10.0
RESERVE_TIMEOUT_S = 1.0
SETTLE_ACK_S = 0.025

_log = logs.get("pipeline")


class Pipeline:
    """Serves requests; any number at once."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._large_bodies = LargeBodies(parts.in_thread)

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
        with span, parts.auditor.request(x), reports.of_request(x):
            try:
                async with asyncio.timeout(arrival.deadline_s):
                    await self._serve(x)
            except BatonError:
                raise
            except TimeoutError:
                raise DeadlineExceeded(f"not finished within {arrival.deadline_s:.0f} s") from None
            # The edge of a request: what nobody expected is told, counted and logged, too.
            except Exception as bug:
                _log.bug("request_failed", bug, request_id=x.request_id)
                raise InternalFailure("a bug of ours; its request id is in our log") from bug

    async def _serve(self, x: Exchange) -> None:
        await self._authenticate(x)
        await self._validate(x)
        await self._tokenize(x)
        await self._reserve(x)
        try:
            await Answering(x, self._parts).run()
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
        with stage(x, "auth") as span:
            context = call_context(x, span, x.deadlines.of_call(AUTHENTICATE_TIMEOUT_S))
            x.principal = await self._parts.authenticator.authenticate(
                x.arrival.authorization, context, x.arrival.client_address
            )

    async def _validate(self, x: Exchange) -> None:
        with stage(x, "validate"):
            x.request = await self._parsed(x)
            x.model = self._parts.directory.resolve(x.request.model, principal_of(x).allowed_models)

    async def _parsed(self, x: Exchange) -> GenerationRequest:
        body, parse = await x.arrival.read_body(), x.arrival.endpoint.parse
        if len(body) <= LARGE_BODY_BYTES:
            return parse(body)
        return await self._large_bodies.parse(principal_of(x).tenant, partial(parse, body))

    async def _tokenize(self, x: Exchange) -> None:
        request, model, progress = request_of(x), model_of(x), x.progress
        progress.cache_key = derive_cache_key(
            self._parts.server_secret, principal_of(x).tenant, request.cache_salt
        )
        with stage(x, "tokenize") as span:
            progress.text_model = await self._parts.artifacts.text_model(model.model_fp)
            progress.prompt = await self._parts.tokenizer.encode(
                submission.encode_request(x),
                call_context(x, span, x.deadlines.of_call(ENCODE_TIMEOUT_S)),
            )
        submission.check(request, model, progress.num_prompt_tokens)
        room = model.max_model_len - progress.num_prompt_tokens
        progress.max_tokens = submission.max_tokens_of(request, room)
        x.request = submission.with_defaults(request, progress.text_model)
        default = self._parts.limits.default_output_reservation
        progress.num_expected_tokens = submission.expected_tokens(x, default)
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
        principal, progress = principal_of(x), x.progress
        with stage(x, "reserve") as span:
            context = call_context(x, span, x.deadlines.of_call(RESERVE_TIMEOUT_S))
            answer, local = await self._reservation(x, context)
        progress.limits = answer.limits
        progress.lease = Lease(
            request_id=x.bill_id,
            tenant=principal.tenant,
            key_id=principal.key_id,
            model=request_of(x).model,
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
        principal = principal_of(x)
        request = quota_pb2.ReserveRequest(
            request_id=x.bill_id,
            tenant=principal.tenant,
            key_id=principal.key_id,
            model=request_of(x).model,
            num_prompt_tokens=x.progress.num_prompt_tokens,
            num_output_tokens=x.progress.num_expected_tokens * request_of(x).num_choices,
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

    async def _settle(self, x: Exchange) -> None:
        self._parts.leases.close(lease_of(x))
        with stage(x, "settle") as span:
            record = usage_record(x)
            acknowledged = False
            try:
                async with asyncio.timeout(SETTLE_ACK_S):
                    await self._parts.quota.settle(record, call_context(x, span, SETTLE_ACK_S))
                acknowledged = True
            except (TimeoutError, BatonError):
                span.set("baton.settle.outbox", True)
            finally:
                # Also when the client leaves at this very moment: the bill is not its to stop.
                self._parts.auditor.settled(x)
                if not acknowledged:
                    await self._parts.outbox.put(record)

"""The tokens of a key that are held for a request while it runs. A reservation is settled exactly
once, however the request ends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from baton.wire.failures import BatonError, LimitExceeded
from baton.wire.v1 import quota_pb2
from services.gateway.clients.protocols import CallContext
from services.gateway.request import submission
from services.gateway.request.auditor import GatewayAuditor
from services.gateway.request.job import TokenCounts, ValidRequest
from services.gateway.request.prompt_estimate import num_prompt_bytes
from services.gateway.request.trace import RequestTrace, Stage
from services.gateway.tenants.lease import Lease
from services.gateway.tenants.leases import LeaseRenewer
from services.gateway.tenants.local_buckets import LocalBuckets
from services.gateway.tenants.outbox import Outbox
from services.gateway.tenants.quota_outage import GuardedQuota, NotAsked, is_outage
from services.gateway.tenants.refusals import PromptSize, Refusals

RESERVE_TIMEOUT_S = 1.0
SETTLE_ACK_S = 0.025
# What an estimate of the prompt held too much goes back at once when it is more than these parts of
# the hold and of the key's minute; else with the next renewal, or when the request settles.
_LEAST_PART_OF_HOLD = 4
_LEAST_PART_OF_LIMIT = 100
_MINUTE_MS = 60_000


class Reservations:
    """Reserves and settles for the requests of one gateway."""

    def __init__(
        self,
        quota: GuardedQuota,
        local_buckets: LocalBuckets,
        refusals: Refusals,
        leases: LeaseRenewer,
        outbox: Outbox,
        auditor: GatewayAuditor,
    ) -> None:
        self._quota = quota
        self._local_buckets = local_buckets
        self._refusals = refusals
        self._leases = leases
        self._outbox = outbox
        self._auditor = auditor

    @asynccontextmanager
    async def reserve(
        self, valid: ValidRequest, request: quota_pb2.ReserveRequest, trace: RequestTrace
    ) -> AsyncIterator[Lease]:
        """Hold tokens for a request; the end of the block settles its usage. Raises BatonError when
        there are none."""
        lease = trace.lease = await self._open(valid, request, trace)
        outcome = "internal"
        try:
            yield lease
            outcome = trace.usage.finish_reasons
        except BatonError as error:
            outcome = error.reason
            raise
        except asyncio.CancelledError:
            is_late = trace.has_timed_out or valid.deadlines.left_s <= 0
            outcome = "deadline_exceeded" if is_late else trace.client.gone_reason
            raise
        finally:
            self._leases.close(lease)
            await self._settle(trace, usage_record(valid, trace, outcome))

    async def fit(
        self, valid: ValidRequest, counts: TokenCounts, lease: Lease, trace: RequestTrace
    ) -> None:
        """Hold the tokens of a prompt that is tokenized in place of its estimate. Raises BatonError
        when there is no room."""
        if counts.num_prompt_tokens > lease.num_prompt_tokens:
            with trace.measure(Stage.RESERVE) as span:
                deadline_s = valid.deadlines.of_call(RESERVE_TIMEOUT_S)
                context = trace.call_context(span, deadline_s)
                await self._hold_more(valid, counts, lease, context)
        if _fit(lease, counts.num_prompt_tokens):
            self._leases.tell(lease)

    async def _hold_more(
        self, valid: ValidRequest, counts: TokenCounts, lease: Lease, context: CallContext
    ) -> None:
        if not lease.local:
            request = submission.reserve_exactly(valid, counts)
            try:
                answer = await self._reserve_at_quota(valid, request, context)
            except BatonError as error:
                if not is_outage(error):
                    raise
            else:
                lease.num_granted = answer.granted_output_tokens
                lease.num_prompt_tokens = answer.num_prompt_tokens
                lease.limits = answer.limits
                return
        num_more = counts.num_prompt_tokens - lease.num_prompt_tokens
        wait_s, _ = self._local_buckets.extend(lease.accounts, lease.model, 0, num_more)
        if wait_s:
            raise LimitExceeded(
                "over the limits while quota is away", retry_after_s=wait_s, limits=lease.limits
            )
        lease.num_prompt_tokens = counts.num_prompt_tokens

    async def _open(
        self, valid: ValidRequest, request: quota_pb2.ReserveRequest, trace: RequestTrace
    ) -> Lease:
        with trace.measure(Stage.RESERVE) as span:
            deadline_s = valid.deadlines.of_call(RESERVE_TIMEOUT_S)
            context = trace.call_context(span, deadline_s)
            answer, local = await self._ask(valid, request, trace, context)
        lease = Lease(
            request_id=request.request_id,
            tenant=request.tenant,
            key_id=request.key_id,
            model=request.model,
            num_prompt_tokens=request.num_prompt_tokens if local else answer.num_prompt_tokens,
            num_granted=answer.granted_output_tokens,
            limits=answer.limits,
            accounts=valid.principal.limits_for(request.model),
            is_estimate=request.min_prompt_tokens > 0,
            local=local,
        )
        self._auditor.reserved(valid.request_id)
        self._leases.open(lease)
        return lease

    async def _ask(
        self,
        valid: ValidRequest,
        request: quota_pb2.ReserveRequest,
        trace: RequestTrace,
        context: CallContext,
    ) -> tuple[quota_pb2.ReserveResponse, bool]:
        """Reserve at quota; returns the grant, and True when it is this gateway's own because quota
        does not answer."""
        try:
            return await self._reserve_at_quota(valid, request, context), False
        except asyncio.CancelledError:
            await self._let_go(valid, trace, trace.client.gone_reason)
            raise
        except BatonError as error:
            if not is_outage(error):
                raise
            try:
                num_open = self._leases.num_open_of
                return self._local_buckets.reserve(valid.principal, request, num_open), True
            except BatonError as refusal:
                if not isinstance(error, NotAsked):
                    await self._let_go(valid, trace, refusal.reason)
                raise

    async def _reserve_at_quota(
        self, valid: ValidRequest, request: quota_pb2.ReserveRequest, context: CallContext
    ) -> quota_pb2.ReserveResponse:
        """The grant of quota; what it refuses is noted."""
        principal = valid.principal
        try:
            answer = await self._quota.reserve(
                request, context, has_fallback=not principal.has_hard_budget(request.model)
            )
        except BatonError as error:
            if not is_outage(error):
                fewest = request.min_prompt_tokens or request.num_prompt_tokens
                size = PromptSize(
                    num_prompt_bytes(valid.request), fewest + request.num_output_tokens
                )
                self._refusals.note(principal.key_id, size, error)
                if error.limits is not None:
                    self._local_buckets.quota_answers(error.limits)
            raise
        self._local_buckets.quota_grants(request.model, answer)
        self._refusals.granted(principal.key_id, answer.limits)
        return answer

    async def _let_go(self, valid: ValidRequest, trace: RequestTrace, outcome: str) -> None:
        """Free later what quota may hold for this request: it was asked, and its answer is lost."""
        await self._outbox.put(usage_record(valid, trace, outcome))

    async def _settle(self, trace: RequestTrace, record: quota_pb2.UsageRecord) -> None:
        """Settle a request. A router's refusal does not wait for it: it must be quick."""
        if record.finish_reason == "overloaded" and not trace.usage.num_submits:
            self._auditor.settled(trace.request_id)
            self._outbox.settle_beside(record)
            return
        with trace.measure(Stage.SETTLE) as span:
            acknowledged = False
            try:
                async with asyncio.timeout(SETTLE_ACK_S):
                    await self._quota.settle(record, trace.call_context(span, SETTLE_ACK_S))
                acknowledged = True
            except (TimeoutError, BatonError):
                span.set("baton.settle.outbox", True)
            finally:
                # Also when the client leaves at this very moment: that must not stop the settling.
                self._auditor.settled(trace.request_id)
                if not acknowledged:
                    await self._outbox.put(record)


def _fit(lease: Lease, num_prompt_tokens: int) -> bool:
    """Take in the exact size of the prompt, which is at most what is held for it. True when so much
    is held too much that its tenant should have it back at once."""
    num_held, lease.num_prompt_tokens = lease.num_prompt_tokens, num_prompt_tokens
    lease.is_estimate = False
    limits, num_spare = lease.limits, num_held - num_prompt_tokens
    if lease.local or not limits.limit_tokens or not num_spare:
        return False
    # The headers are those of a reservation of the exact size.
    limits.remaining_tokens = min(limits.remaining_tokens + num_spare, limits.limit_tokens)
    spare_ms = num_spare * _MINUTE_MS // limits.limit_tokens
    limits.reset_tokens_ms = max(limits.reset_tokens_ms - spare_ms, 0)
    is_large = num_spare * _LEAST_PART_OF_LIMIT > limits.limit_tokens
    return is_large and num_spare * _LEAST_PART_OF_HOLD > num_held


def usage_record(valid: ValidRequest, trace: RequestTrace, outcome: str) -> quota_pb2.UsageRecord:
    """The usage record of a request. Its stages add up to its wall time."""
    usage, timer = trace.usage, trace.timer
    return quota_pb2.UsageRecord(
        request_id=valid.request_id,
        tenant=valid.principal.tenant,
        key_id=valid.principal.key_id,
        model=valid.model.name,
        model_fp=valid.model.model_fp,
        started_unix_ms=int(trace.started_unix_s * 1000),
        num_prompt_tokens=usage.num_prompt_tokens if usage.prompt_was_read else 0,
        num_cached_tokens=usage.num_cached_tokens if usage.prompt_was_read else 0,
        num_output_tokens=usage.num_output_tokens,
        num_wasted_tokens=usage.num_wasted_tokens,
        finish_reason=outcome,
        stages=timer.to_wire(),
        wall_us=round(timer.wall_s * 1e6),
        endpoint=valid.incoming.endpoint.name,
        num_attempts=usage.num_attempts,
        engine=usage.engine_time(outcome),
    )

"""The tokens of a key that are held for a request while it runs. A reservation is settled exactly
once, however the request ends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from baton.wire.failures import BatonError
from baton.wire.v1 import quota_pb2
from services.gateway.clients.protocols import CallContext
from services.gateway.request import reports
from services.gateway.request.auditor import GatewayAuditor
from services.gateway.request.job import Job
from services.gateway.request.trace import RequestTrace, Stage
from services.gateway.tenants.lease import Lease
from services.gateway.tenants.leases import LeaseRenewer
from services.gateway.tenants.local_buckets import LocalBuckets
from services.gateway.tenants.outbox import Outbox
from services.gateway.tenants.quota_outage import GuardedQuota, NotAsked, is_outage
from services.gateway.tenants.refusals import PromptSize, Refusals

RESERVE_TIMEOUT_S = 1.0
SETTLE_ACK_S = 0.025


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
    async def reserve(self, job: Job, trace: RequestTrace) -> AsyncIterator[Lease]:
        """Hold tokens for a job; the end of the block settles its usage. Raises BatonError when
        there are none."""
        lease = await self._open(job, trace)
        with reports.of_tokens(trace, job.request.num_choices, job.plan.max_tokens):
            outcome = "internal"
            try:
                yield lease
                outcome = trace.usage.finish_reasons
            except BatonError as error:
                outcome = error.reason
                raise
            except asyncio.CancelledError:
                is_late = job.deadlines.left_s <= 0
                outcome = "deadline_exceeded" if is_late else trace.client.gone_reason
                raise
            finally:
                self._leases.close(lease)
                await self._settle(trace, usage_record(job, trace, outcome))

    async def _open(self, job: Job, trace: RequestTrace) -> Lease:
        with trace.measure(Stage.RESERVE) as span:
            deadline_s = job.deadlines.of_call(RESERVE_TIMEOUT_S)
            answer, local = await self._ask(job, trace, trace.call_context(span, deadline_s))
        lease = Lease(
            request_id=job.incoming.usage_id,
            tenant=job.principal.tenant,
            key_id=job.principal.key_id,
            model=job.model.name,
            num_prompt_tokens=job.prompt.num_tokens,
            num_granted=answer.granted_output_tokens,
            limits=answer.limits,
            accounts=job.principal.limits_for(job.model.name),
            local=local,
        )
        self._auditor.reserved(job.request_id)
        self._leases.open(lease)
        return lease

    async def _ask(
        self, job: Job, trace: RequestTrace, context: CallContext
    ) -> tuple[quota_pb2.ReserveResponse, bool]:
        """Reserve at quota; returns the grant, and True when it is this gateway's own because quota
        does not answer."""
        request = _reserve_request(job)
        try:
            answer = await self._quota.reserve(
                request, context, has_fallback=not job.principal.has_hard_budget(request.model)
            )
        except asyncio.CancelledError:
            await self._let_go(job, trace, trace.client.gone_reason)
            raise
        except BatonError as error:
            if not is_outage(error):
                num_tokens = request.num_prompt_tokens + request.num_output_tokens
                size = PromptSize(job.request.num_prompt_bytes, num_tokens)
                self._refusals.note(job.principal.key_id, size, error)
                if error.limits is not None:
                    self._local_buckets.quota_answers(error.limits)
                raise
            try:
                num_open = self._leases.num_open_of
                return self._local_buckets.reserve(job.principal, request, num_open), True
            except BatonError as refusal:
                if not isinstance(error, NotAsked):
                    await self._let_go(job, trace, refusal.reason)
                raise
        self._local_buckets.quota_grants(request.model, answer)
        return answer, False

    async def _let_go(self, job: Job, trace: RequestTrace, outcome: str) -> None:
        """Free later what quota may hold for this request: it was asked, and its answer is lost."""
        await self._outbox.put(usage_record(job, trace, outcome))

    async def _settle(self, trace: RequestTrace, record: quota_pb2.UsageRecord) -> None:
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


def usage_record(job: Job, trace: RequestTrace, outcome: str) -> quota_pb2.UsageRecord:
    """The usage record of a request. Its stages add up to its wall time."""
    usage, timer = trace.usage, trace.timer
    return quota_pb2.UsageRecord(
        request_id=job.incoming.usage_id,
        tenant=job.principal.tenant,
        key_id=job.principal.key_id,
        model=job.model.name,
        model_fp=job.model.model_fp,
        started_unix_ms=int(trace.started_unix_s * 1000),
        num_prompt_tokens=usage.num_prompt_tokens if usage.prompt_was_read else 0,
        num_cached_tokens=usage.num_cached_tokens if usage.prompt_was_read else 0,
        num_output_tokens=usage.num_output_tokens,
        num_wasted_tokens=usage.num_wasted_tokens,
        finish_reason=outcome,
        stages=timer.to_wire(),
        wall_us=round(timer.wall_s * 1e6),
        endpoint=job.incoming.endpoint.name,
        num_attempts=usage.num_attempts,
        engine=usage.engine_time(outcome),
    )


def _reserve_request(job: Job) -> quota_pb2.ReserveRequest:
    return quota_pb2.ReserveRequest(
        request_id=job.incoming.usage_id,
        tenant=job.principal.tenant,
        key_id=job.principal.key_id,
        # Limits and prices are of the model, whatever alias it was asked for by.
        model=job.model.name,
        num_prompt_tokens=job.prompt.num_tokens,
        num_output_tokens=job.plan.num_expected_tokens * job.request.num_choices,
        min_output_tokens=job.request.num_choices if job.request.max_tokens is None else 0,
    )

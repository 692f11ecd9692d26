"""Quota while its service or its store is away: a breaker in front, local buckets behind.

The breaker opens after MAX_FAILURES calls in a row that got no answer; then calls fail at once and
one probe a second goes through. Tenants without a hard budget go on against a bucket of this
gateway's own, which starts at the last remaining count that the quota service reported; their usage
is settled later. Tenants with a hard budget are refused.
"""

import random
from collections import OrderedDict
from dataclasses import dataclass

from baton.runtime.shared_stream import FrameStream
from baton.system.clock import Clock
from baton.wire.failures import BatonError, LimitExceeded, Unavailable
from baton.wire.v1 import failure_pb2, quota_pb2
from services.gateway.clients.protocols import CallContext, QuotaClient
from services.gateway.tenants.auth import Principal

MAX_FAILURES = 5
OPEN_S = 1.0
MAX_KEYS = 10_000
_MINUTE_S = 60.0
_NO_ANSWER = frozenset({"unavailable", "quota_unavailable", "deadline_exceeded"})


def is_outage(error: BatonError) -> bool:
    """True when quota did not answer, rather than refuse."""
    return error.reason in _NO_ANSWER


class GuardedQuota:
    """A QuotaClient behind a breaker."""

    def __init__(self, quota: QuotaClient, clock: Clock, rng: random.Random) -> None:
        self._quota = quota
        self._clock = clock
        self._rng = rng
        self._num_failures = 0
        self._closed_again_s = 0.0

    async def authenticate(
        self, key_digest: bytes, context: CallContext
    ) -> quota_pb2.AuthenticateResponse:
        self._check()
        try:
            answer = await self._quota.authenticate(key_digest, context)
        except BatonError as error:
            self._note(error)
            raise
        self._num_failures = 0
        return answer

    async def reserve(
        self, request: quota_pb2.ReserveRequest, context: CallContext
    ) -> quota_pb2.ReserveResponse:
        self._check()
        try:
            answer = await self._quota.reserve(request, context)
        except BatonError as error:
            self._note(error)
            raise
        self._num_failures = 0
        return answer

    async def settle(self, record: quota_pb2.UsageRecord, context: CallContext) -> None:
        """Settle a record. Failures do not count: the short deadline proves no outage."""
        self._check()
        await self._quota.settle(record, context)
        self._num_failures = 0

    async def open_renewals(self) -> FrameStream[quota_pb2.RenewResponse, quota_pb2.RenewRequest]:
        return await self._quota.open_renewals()

    async def probe(self, deadline_s: float) -> None:
        await self._quota.probe(deadline_s)

    def _check(self) -> None:
        if self._num_failures >= MAX_FAILURES and self._clock.now() < self._closed_again_s:
            raise Unavailable(
                "the quota service does not answer", reason="quota_unavailable", retry_after_s=1
            )
        if self._num_failures >= MAX_FAILURES:
            # This call is the probe; the next one waits again.
            self._open()

    def _note(self, error: BatonError) -> None:
        if not is_outage(error):
            self._num_failures = 0
            return
        self._num_failures += 1
        if self._num_failures >= MAX_FAILURES:
            self._open()

    def _open(self) -> None:
        self._closed_again_s = self._clock.now() + OPEN_S * (0.5 + self._rng.random())


@dataclass(slots=True)
class _Bucket:
    """A token bucket that refills to `limit` within a minute. Limit 0 = unlimited."""

    limit: int
    level: float
    filled_s: float

    def refill(self, now_s: float) -> None:
        gained = (now_s - self.filled_s) * self.limit / _MINUTE_S
        self.level = min(float(self.limit), self.level + gained)
        self.filled_s = now_s

    def wait_s(self, amount: int) -> float:
        """The seconds until the bucket holds `amount`; 0 = now."""
        if not self.limit or self.level >= amount:
            return 0.0
        return (amount - self.level) * _MINUTE_S / self.limit


class LocalBuckets:
    """The buckets of each key, for requests and tokens per minute, as far as this gateway knows."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_limits: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._buckets: OrderedDict[str, tuple[_Bucket, _Bucket]] = OrderedDict()

    def quota_answers(self, principal: Principal, limits: failure_pb2.LimitState) -> None:
        """Note the remaining counts that quota reported, with which an outage would start."""
        self._buckets.pop(principal.key_id, None)
        self._last_limits[principal.key_id] = (limits.remaining_requests, limits.remaining_tokens)
        self._last_limits.move_to_end(principal.key_id)
        if len(self._last_limits) > MAX_KEYS:
            self._last_limits.popitem(last=False)

    def reserve(
        self, principal: Principal, request: quota_pb2.ReserveRequest
    ) -> quota_pb2.ReserveResponse:
        """Reserve from the local buckets, as Quota.Reserve does. Raises Unavailable for hard
        budgets, and LimitExceeded."""
        if principal.hard_budget:
            raise Unavailable(
                "the budget cannot be checked now", reason="quota_unavailable", retry_after_s=1
            )
        requests, tokens = self._of(principal)
        num_tokens = request.num_prompt_tokens + request.num_output_tokens
        wait_s = max(requests.wait_s(1), tokens.wait_s(num_tokens))
        if wait_s:
            raise LimitExceeded(
                "over the limit per minute", retry_after_s=wait_s, limits=_state(requests, tokens)
            )
        requests.level -= 1
        tokens.level -= num_tokens
        return quota_pb2.ReserveResponse(
            granted_output_tokens=request.num_output_tokens, limits=_state(requests, tokens)
        )

    def _of(self, principal: Principal) -> tuple[_Bucket, _Bucket]:
        now_s, key_id = self._clock.now(), principal.key_id
        pair = self._buckets.get(key_id)
        if pair is None:
            limits = (principal.requests_per_minute, principal.tokens_per_minute)
            requests, tokens = self._last_limits.get(key_id, limits)
            pair = _Bucket(limits[0], requests, now_s), _Bucket(limits[1], tokens, now_s)
            self._buckets[key_id] = pair
            if len(self._buckets) > MAX_KEYS:
                self._buckets.popitem(last=False)
        for bucket in pair:
            bucket.refill(now_s)
        return pair


def _state(requests: _Bucket, tokens: _Bucket) -> failure_pb2.LimitState:
    return failure_pb2.LimitState(
        limit_requests=requests.limit,
        remaining_requests=max(0, int(requests.level)),
        reset_requests_ms=round(requests.wait_s(requests.limit) * 1000),
        limit_tokens=tokens.limit,
        remaining_tokens=max(0, int(tokens.level)),
        reset_tokens_ms=round(tokens.wait_s(tokens.limit) * 1000),
    )

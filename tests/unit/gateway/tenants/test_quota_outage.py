"""Requests while quota cannot be asked."""

import asyncio
import random

import pytest

from baton.testing.virtual_clock import VirtualClock
from baton.wire.failures import (
    AuthenticationFailed,
    DeadlineExceeded,
    LimitExceeded,
    Unavailable,
)
from baton.wire.v1 import failure_pb2, quota_pb2
from services.gateway.clients.protocols import CallContext
from services.gateway.tenants.auth import Principal
from services.gateway.tenants.quota_outage import GuardedQuota, LocalBuckets
from tests.unit.gateway.fakes import FakeQuota, Fleet, simulate

CONTEXT = CallContext("r1", 1.0)


def test_soft_tenants_go_on_and_are_settled_when_quota_is_back() -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.chat()
        fleet.quota.reserve_failure = Unavailable("down", reason="quota_unavailable")
        fleet.quota.settle_failure = Unavailable("down")
        sink = await fleet.chat()
        assert sink.text() == "Hello there."
        assert sink.head is not None
        assert sink.head.degraded
        assert len(fleet.quota.settled) == 1
        fleet.quota.settle_failure = None
        await asyncio.sleep(3)
        assert [record.request_id for record in fleet.quota.settled] == ["r1", "r2"]

    simulate(scenario)


def test_hard_budgets_are_refused() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.quota.principal.limits.hard_budget = True
        await fleet.chat()
        fleet.quota.reserve_failure = Unavailable("down")
        with pytest.raises(Unavailable) as caught:
            await fleet.chat()
        assert caught.value.reason == "quota_unavailable"

    simulate(scenario)


def test_a_lease_of_the_gateways_own_is_never_renewed_at_quota() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.quota.reserve_failure = DeadlineExceeded("no answer")
        fleet.quota.on_renewal = lambda r: (0, quota_pb2.LeaseState.STATE_LOST)
        fleet.worker.texts = ["x" * 700]
        sink = await fleet.chat()
        assert len(sink.text()) == 700
        assert not fleet.quota.renewals

    simulate(scenario)


def test_a_local_bucket_starts_at_the_last_count_of_quota_and_refills() -> None:
    clock = VirtualClock()
    buckets = LocalBuckets(clock)
    principal = Principal("acme", "k", requests_per_minute=60, tokens_per_minute=600)
    request = quota_pb2.ReserveRequest(num_prompt_tokens=10, num_output_tokens=90)
    told = failure_pb2.LimitState(remaining_requests=5, remaining_tokens=120)
    buckets.quota_answers(principal, told)
    answer = buckets.reserve(principal, request)
    assert answer.granted_output_tokens == 90
    assert (answer.limits.remaining_requests, answer.limits.remaining_tokens) == (4, 20)
    with pytest.raises(LimitExceeded) as caught:
        buckets.reserve(principal, request)
    assert caught.value.retry_after_s == pytest.approx(8)
    assert caught.value.limits is not None
    assert caught.value.limits.remaining_tokens == 20
    clock.advance(8)
    buckets.reserve(principal, request)


def test_a_tenant_without_limits_has_none_locally() -> None:
    buckets = LocalBuckets(VirtualClock())
    request = quota_pb2.ReserveRequest(num_output_tokens=10**9)
    for _ in range(100):
        buckets.reserve(Principal("acme", "k"), request)


def test_keys_of_one_tenant_have_buckets_of_their_own() -> None:
    buckets = LocalBuckets(VirtualClock())
    request = quota_pb2.ReserveRequest(num_output_tokens=10)
    free, narrow = Principal("acme", "free"), Principal("acme", "narrow", requests_per_minute=1)
    buckets.reserve(free, request)
    buckets.reserve(narrow, request)
    with pytest.raises(LimitExceeded):
        buckets.reserve(narrow, request)
    buckets.reserve(free, request)


async def test_a_settle_that_is_acknowledged_closes_the_breaker() -> None:
    clock, quota = VirtualClock(), FakeQuota()
    guarded = GuardedQuota(quota, clock, random.Random(1))
    quota.failure = DeadlineExceeded("hangs")
    for _ in range(5):
        with pytest.raises(DeadlineExceeded):
            await guarded.authenticate(b"x", CONTEXT)
    clock.advance(1.6)
    quota.failure = None
    await guarded.settle(quota_pb2.UsageRecord(), CONTEXT)
    await guarded.reserve(quota_pb2.ReserveRequest(), CONTEXT)


async def test_the_breaker_opens_after_five_failures_and_lets_one_probe_through() -> None:
    clock, quota = VirtualClock(), FakeQuota()
    guarded = GuardedQuota(quota, clock, random.Random(1))
    quota.failure = DeadlineExceeded("hangs")
    for _ in range(5):
        with pytest.raises(DeadlineExceeded):
            await guarded.authenticate(b"x", CONTEXT)
    with pytest.raises(Unavailable):
        await guarded.authenticate(b"x", CONTEXT)
    assert quota.num_authenticated == 5
    clock.advance(1.6)
    with pytest.raises(DeadlineExceeded):
        await guarded.authenticate(b"x", CONTEXT)
    with pytest.raises(Unavailable):
        await guarded.reserve(quota_pb2.ReserveRequest(), CONTEXT)
    assert quota.num_authenticated == 6
    clock.advance(1.6)
    quota.failure = None
    await guarded.reserve(quota_pb2.ReserveRequest(), CONTEXT)
    await guarded.reserve(quota_pb2.ReserveRequest(), CONTEXT)
    assert len(quota.reserved) == 2


async def test_refusals_do_not_open_the_breaker() -> None:
    quota = FakeQuota()
    guarded = GuardedQuota(quota, VirtualClock(), random.Random(1))
    for _ in range(20):
        with pytest.raises(AuthenticationFailed):
            await guarded.authenticate(b"wrong", CONTEXT)
    assert quota.num_authenticated == 20

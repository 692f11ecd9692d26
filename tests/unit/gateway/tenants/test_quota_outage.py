"""Requests while quota does not answer: it is gone, or it hangs."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from baton.testing.virtual_clock import run_virtual
from baton.wire.failures import AuthenticationFailed, DeadlineExceeded, LimitExceeded, Unavailable
from baton.wire.v1 import quota_pb2
from services.gateway.clients.protocols import CallContext
from services.gateway.tenants.quota_outage import (
    GRACE_S,
    MAX_FAILURES,
    NO_KEY,
    SILENCE_S,
    GuardedQuota,
)
from tests.unit.gateway.fakes import FakeQuota, Fleet, RecordingSink, simulate

CONTEXT = CallContext("r1", 1.0)
REQUEST = quota_pb2.ReserveRequest()
HANGS_S = 3600.0


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


def test_open_requests_of_a_key_are_limited_while_quota_is_away() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.quota.principal.limits.concurrency = 2
        fleet.worker.texts = ["x" * 300]
        await fleet.chat(max_tokens=1)
        fleet.quota.reserve_failure = Unavailable("down", reason="quota_unavailable")
        running = [asyncio.create_task(fleet.chat()) for _ in range(2)]
        await asyncio.sleep(0.5)
        with pytest.raises(LimitExceeded):
            await fleet.chat()
        await asyncio.gather(*running)
        await fleet.chat()

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


def guarding(scenario: Callable[[GuardedQuota, FakeQuota], Awaitable[None]]) -> None:
    """Run a scenario with a guard that probes, on virtual time."""

    async def main() -> None:
        clock, quota = asyncio.get_running_loop().clock, FakeQuota()  # type: ignore[attr-defined]
        guarded = GuardedQuota(quota, clock, random.Random(1))
        async with asyncio.TaskGroup() as tasks:
            probing = tasks.create_task(guarded.run())
            await scenario(guarded, quota)
            probing.cancel()

    run_virtual(main())


def now_s() -> float:
    return asyncio.get_running_loop().time()


def test_a_silent_quota_is_given_up_after_a_fifth_of_a_second_and_asked_by_no_request_then() -> (
    None
):
    async def scenario(guarded: GuardedQuota, quota: FakeQuota) -> None:
        await guarded.reserve(REQUEST, CONTEXT, has_fallback=True)
        await asyncio.sleep(1)
        quota.reserve_delay_s = quota.authenticate_delay_s = HANGS_S
        began_s = now_s()

        async def late_call() -> None:
            await asyncio.sleep(SILENCE_S * 0.9)
            with pytest.raises(DeadlineExceeded):
                await guarded.reserve(REQUEST, CONTEXT, has_fallback=True)

        late = asyncio.create_task(late_call())
        with pytest.raises(DeadlineExceeded):
            await guarded.reserve(REQUEST, CONTEXT, has_fallback=True)
        await late
        assert now_s() - began_s == pytest.approx(SILENCE_S), "those that wait are let go together"
        num_asked = len(quota.reserved)
        for _ in range(100):
            with pytest.raises(Unavailable):
                await guarded.reserve(REQUEST, CONTEXT, has_fallback=True)
            with pytest.raises(Unavailable):
                await guarded.settle(quota_pb2.UsageRecord(), CONTEXT)
            await asyncio.sleep(0.1)
        assert now_s() - began_s == pytest.approx(SILENCE_S + 10)
        assert len(quota.reserved) == num_asked

    guarding(scenario)


def test_quota_is_reached_once_its_store_has_answered_and_a_soft_dependency_from_then_on() -> None:
    async def scenario(guarded: GuardedQuota, quota: FakeQuota) -> None:
        quota.authenticate_delay_s = HANGS_S
        with pytest.raises(DeadlineExceeded):
            await guarded.probe(0.5)
        quota.authenticate_delay_s = 0
        await guarded.probe(0.5)
        quota.authenticate_delay_s = HANGS_S
        await guarded.probe(0.5)

    guarding(scenario)


def test_one_slow_call_among_answered_ones_is_given_up_and_the_others_go_on() -> None:
    async def scenario(guarded: GuardedQuota, quota: FakeQuota) -> None:
        quota.reserve_delay_s = HANGS_S
        slow = asyncio.create_task(guarded.reserve(REQUEST, CONTEXT, has_fallback=True))
        await asyncio.sleep(SILENCE_S / 2)
        quota.failure = AuthenticationFailed("wrong")
        with pytest.raises(AuthenticationFailed):
            await guarded.authenticate(b"x", CONTEXT, has_fallback=True)
        with pytest.raises(DeadlineExceeded):
            await slow
        assert not guarded.is_open

    guarding(scenario)


def test_a_busy_process_does_not_take_its_own_silence_for_quotas() -> None:
    async def scenario(guarded: GuardedQuota, quota: FakeQuota) -> None:
        loop = asyncio.get_running_loop()
        quota.reserve_delay_s = SILENCE_S / 4
        for busy_from_s in (0.0, SILENCE_S / 8):
            # Nothing else runs meanwhile, and every timer is late then.
            loop.call_later(busy_from_s, loop.clock.advance, 5 * SILENCE_S)  # type: ignore[attr-defined]
            await guarded.reserve(REQUEST, CONTEXT, has_fallback=True)
        assert not guarded.is_open

    guarding(scenario)


def test_a_quota_that_is_silent_to_a_busy_process_is_given_up_all_the_same() -> None:
    async def scenario(guarded: GuardedQuota, quota: FakeQuota) -> None:
        clock = asyncio.get_running_loop().clock  # type: ignore[attr-defined]

        async def be_busy() -> None:
            while True:
                await asyncio.sleep(0.001)
                clock.advance(0.05)

        quota.reserve_delay_s = quota.authenticate_delay_s = HANGS_S
        busy, began_s = asyncio.create_task(be_busy()), now_s()
        with pytest.raises(DeadlineExceeded):
            await guarded.reserve(REQUEST, CONTEXT, has_fallback=True)
        assert now_s() - began_s < 4 * SILENCE_S
        assert guarded.is_open
        busy.cancel()

    guarding(scenario)


def test_a_background_call_finds_out_when_quota_is_back() -> None:
    async def scenario(guarded: GuardedQuota, quota: FakeQuota) -> None:
        quota.reserve_delay_s = quota.authenticate_delay_s = HANGS_S
        with pytest.raises(DeadlineExceeded):
            await guarded.reserve(REQUEST, CONTEXT, has_fallback=True)
        await asyncio.sleep(60)
        assert guarded.is_open
        quota.reserve_delay_s = quota.authenticate_delay_s = 0.0
        await asyncio.sleep(1.2)
        assert not guarded.is_open
        await guarded.reserve(REQUEST, CONTEXT, has_fallback=True)

    guarding(scenario)


def test_five_failures_in_a_row_open_the_breaker() -> None:
    async def scenario(guarded: GuardedQuota, quota: FakeQuota) -> None:
        quota.failure = Unavailable("down", reason="quota_unavailable")
        for _ in range(MAX_FAILURES):
            assert not guarded.is_open
            with pytest.raises(Unavailable):
                await guarded.reserve(REQUEST, CONTEXT, has_fallback=True)
        assert guarded.is_open

    guarding(scenario)


def test_a_call_without_a_fallback_waits_as_long_as_it_may_in_the_first_second() -> None:
    async def scenario(guarded: GuardedQuota, quota: FakeQuota) -> None:
        quota.reserve_delay_s = quota.authenticate_delay_s = 0.8
        patient = asyncio.create_task(guarded.reserve(REQUEST, CONTEXT))
        with pytest.raises(DeadlineExceeded):
            await guarded.reserve(REQUEST, CONTEXT, has_fallback=True)
        assert guarded.is_open
        another = asyncio.create_task(guarded.reserve(REQUEST, CONTEXT))
        await patient
        await another
        assert not guarded.is_open, "their answers show that quota is back"
        quota.reserve_delay_s = quota.authenticate_delay_s = HANGS_S
        with pytest.raises(DeadlineExceeded):
            await guarded.reserve(REQUEST, CONTEXT, has_fallback=True)
        await asyncio.sleep(GRACE_S)
        with pytest.raises(Unavailable):
            await guarded.reserve(REQUEST, CONTEXT)

    guarding(scenario)


def test_a_settle_that_is_acknowledged_closes_the_breaker() -> None:
    async def scenario(guarded: GuardedQuota, quota: FakeQuota) -> None:
        quota.settle_delay_s = 0.3
        settling = asyncio.create_task(guarded.settle(quota_pb2.UsageRecord(), CONTEXT))
        await asyncio.sleep(0.01)
        quota.reserve_delay_s = quota.authenticate_delay_s = HANGS_S
        with pytest.raises(DeadlineExceeded):
            await guarded.reserve(REQUEST, CONTEXT, has_fallback=True)
        assert guarded.is_open
        await settling
        assert not guarded.is_open

    guarding(scenario)


def test_refusals_do_not_open_the_breaker() -> None:
    async def scenario(guarded: GuardedQuota, quota: FakeQuota) -> None:
        for _ in range(20):
            with pytest.raises(AuthenticationFailed):
                await guarded.authenticate(b"wrong", CONTEXT)
        assert not guarded.is_open

    guarding(scenario)


def test_a_quota_that_hangs_adds_ten_milliseconds_at_most_once_that_is_known() -> None:
    async def scenario(fleet: Fleet) -> None:
        quota, took_s = fleet.quota, []

        async def request(sink: RecordingSink, number: int) -> None:
            await asyncio.sleep(number / 50)
            asked_s = now_s()
            await fleet.chat(sink)
            assert sink.head is not None
            stages = sink.head.stages
            took_s.append((asked_s, sum(stages[name] for name in ("auth", "reserve", "settle"))))

        await fleet.chat()
        hung_s = now_s() + 2
        loop = asyncio.get_running_loop()

        def hang() -> None:
            quota.authenticate_delay_s = quota.reserve_delay_s = quota.settle_delay_s = HANGS_S

        loop.call_at(hung_s, hang)
        async with asyncio.TaskGroup() as tasks:
            for number in range(50 * 6):
                tasks.create_task(request(RecordingSink(), number))
        learning = [took for asked_s, took in took_s if hung_s - 0.5 < asked_s <= hung_s + 0.25]
        after = sorted(took for asked_s, took in took_s if asked_s > hung_s + 0.25)
        assert max(learning) <= 0.25
        assert after[int(0.99 * len(after))] <= 0.01

    simulate(scenario)


def test_an_answer_that_runs_when_quota_hangs_gets_its_tokens_here() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = ["x" * 1200]
        fleet.worker.step_s = 0.005
        running = asyncio.create_task(fleet.chat())
        await asyncio.sleep(1)
        fleet.quota.hangs_renewals = True
        fleet.quota.authenticate_delay_s = fleet.quota.reserve_delay_s = HANGS_S
        await fleet.chat()
        began_s = now_s()
        sink = await running
        assert (len(sink.text()), sink.reason()) == (1200, "stop")
        assert now_s() - began_s < 1200 * 0.005

    simulate(scenario)


def test_a_key_is_looked_up_in_quotas_files_while_its_store_is_away() -> None:
    async def scenario(guarded: GuardedQuota, quota: FakeQuota) -> None:
        await guarded.probe(0.5)
        quota.principal.is_from_files = True
        quota.failure = Unavailable("down", reason="quota_unavailable")
        for _ in range(MAX_FAILURES):
            with pytest.raises(Unavailable):
                await guarded.reserve(REQUEST, CONTEXT, has_fallback=True)
        await asyncio.sleep(GRACE_S)
        by_files, quota.failure = quota.principal, None

        async def authenticate(digest: bytes, context: CallContext) -> Any:
            if digest == NO_KEY:
                raise Unavailable("down", reason="quota_unavailable")
            return by_files

        quota.authenticate = authenticate  # type: ignore[method-assign]
        assert (await guarded.authenticate(b"k" * 32, CONTEXT)).tenant == "acme"
        with pytest.raises(Unavailable):
            await guarded.authenticate(b"k" * 32, CONTEXT, has_fallback=True)
        assert guarded.is_open, "the files do not say that the store is back"

    guarding(scenario)

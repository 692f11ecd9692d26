"""Tests of renewals over a stream that ends: another replica answers, or none does."""

import asyncio
import random
from typing import Any

from baton.runtime.shared_stream import FrameStream
from baton.testing.memory_stream import memory_stream_pair
from baton.testing.virtual_clock import VirtualClock, run_virtual
from baton.wire.failures import Unavailable
from baton.wire.v1 import failure_pb2, quota_pb2
from services.gateway.tenants.lease import Lease, Standing
from services.gateway.tenants.leases import BEAT_S, LeaseRenewer
from services.gateway.tenants.local_buckets import LocalBuckets
from services.gateway.tenants.principal import AccountLimits
from services.gateway.tenants.quota_outage import GuardedQuota
from services.gateway.tenants.shortage import MIN_SLICE_TOKENS

HELD = quota_pb2.LeaseState.STATE_HELD
REFUSED = quota_pb2.LeaseState.STATE_REFUSED
LOST = quota_pb2.LeaseState.STATE_LOST
SHORT = quota_pb2.LeaseState.STATE_SHORT


class Replicas:
    """A quota service whose renewal streams the test reads and answers, one after the other."""

    def __init__(self) -> None:
        self.streams: list[Any] = []
        self.is_down = False
        self.opened = asyncio.Event()
        self.num_tries = 0

    async def open_renewals(self) -> FrameStream[Any, Any]:
        self.num_tries += 1
        if self.is_down:
            raise Unavailable("no quota service answers")
        near, far = memory_stream_pair()
        self.streams.append(far)
        self.opened.set()
        return near

    async def next_stream(self) -> Any:
        await self.opened.wait()
        self.opened.clear()
        return self.streams[-1]

    async def answer(
        self,
        granted: int | None = None,
        state: quota_pb2.LeaseState.State = HELD,
        retry_after_ms: int = 0,
    ) -> quota_pb2.RenewRequest:
        """Read one request and grant what it wants, or `granted`."""
        request = await self.streams[-1].read()
        response = quota_pb2.RenewResponse()
        for lease in request.leases:
            wanted = max(lease.wanted_output_tokens, lease.granted_output_tokens)
            response.leases.add(
                request_id=lease.request_id,
                granted_output_tokens=wanted if granted is None else granted,
                state=state,
                retry_after_ms=retry_after_ms,
            )
        await self.streams[-1].write(response)
        return request


def lease_of(request_id: str = "r1", **fields: Any) -> Lease:
    return Lease(request_id, "acme", "k", "demo", num_prompt_tokens=3, num_granted=100, **fields)


def hard_lease(request_id: str = "r1") -> Lease:
    return lease_of(request_id, accounts=(AccountLimits("k", hard_budget=True),))


def keeping(scenario: Any) -> None:
    async def main() -> None:
        quota, clock, rng = Replicas(), VirtualClock(), random.Random(3)
        guarded = GuardedQuota(quota, clock, rng)  # type: ignore[arg-type]
        keeper = LeaseRenewer(guarded, LocalBuckets(clock), "gw-1", rng)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(keeper.run())
            await scenario(quota, keeper)
            running.cancel()

    run_virtual(main())


def test_an_ask_that_meets_a_leaving_replica_is_answered_by_the_next() -> None:
    async def scenario(quota: Replicas, keeper: LeaseRenewer) -> None:
        lease = hard_lease()
        keeper.open(lease)
        await quota.next_stream()
        await quota.answer()
        await quota.streams[0].close()
        keeper.ask(lease, 500)
        await quota.next_stream()
        await quota.answer()
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        assert (lease.num_granted, lease.standing) == (500, Standing.HELD)

    keeping(scenario)


def test_an_ask_that_was_lost_with_its_stream_is_asked_again() -> None:
    async def scenario(quota: Replicas, keeper: LeaseRenewer) -> None:
        lease = hard_lease()
        keeper.open(lease)
        first = await quota.next_stream()
        await quota.answer()
        await asyncio.sleep(0.001)
        keeper.ask(lease, 500)
        assert (await first.read()).leases[0].wanted_output_tokens == 500
        await first.close()
        await quota.next_stream()
        await quota.answer()
        await asyncio.sleep(0.001)
        assert lease.num_granted == 500

    keeping(scenario)


def test_a_renewal_that_comes_late_never_lowers_the_grant() -> None:
    async def scenario(quota: Replicas, keeper: LeaseRenewer) -> None:
        lease = lease_of()
        keeper.open(lease)
        await quota.next_stream()
        keeper.ask(lease, 500)
        await quota.answer(granted=500)
        # What was asked before that is answered after it.
        await quota.answer(granted=100)
        await asyncio.sleep(0.001)
        assert lease.num_granted == 500

    keeping(scenario)


def test_an_outage_never_lowers_the_grant() -> None:
    async def scenario(quota: Replicas, keeper: LeaseRenewer) -> None:
        lease = lease_of()
        keeper.open(lease)
        quota.is_down = True
        await asyncio.sleep(1)
        keeper.ask(lease, 50)
        assert lease.num_granted == 100

    keeping(scenario)


def test_a_refused_extension_keeps_the_grant_and_is_reported() -> None:
    async def scenario(quota: Replicas, keeper: LeaseRenewer) -> None:
        told: list[Standing] = []
        lease = lease_of()
        lease.on_change = lambda: told.append(lease.standing)
        keeper.open(lease)
        await quota.next_stream()
        await quota.answer()
        keeper.ask(lease, 500)
        await quota.answer(granted=100, state=REFUSED)
        await asyncio.sleep(0.001)
        assert lease.num_granted == 100
        assert told == [Standing.HELD, Standing.SPENT]

    keeping(scenario)


def test_a_lost_lease_is_reported() -> None:
    async def scenario(quota: Replicas, keeper: LeaseRenewer) -> None:
        told: list[Standing] = []
        lease = lease_of()
        lease.on_change = lambda: told.append(lease.standing)
        keeper.open(lease)
        await quota.next_stream()
        await quota.answer(granted=0, state=LOST)
        await asyncio.sleep(0.001)
        assert told == [Standing.LOST]

    keeping(scenario)


def test_an_answer_for_a_request_that_has_ended_changes_nothing() -> None:
    async def scenario(quota: Replicas, keeper: LeaseRenewer) -> None:
        ended, open_one = lease_of("ended"), lease_of("open")
        for lease in (ended, open_one):
            keeper.open(lease)
        await quota.next_stream()
        await asyncio.sleep(0.001)
        keeper.close(ended)
        await quota.answer(granted=500)
        await asyncio.sleep(0.001)
        assert (ended.num_granted, open_one.num_granted) == (100, 500)

    keeping(scenario)


def test_a_request_that_ends_before_its_ask_has_left_asks_no_more() -> None:
    async def scenario(quota: Replicas, keeper: LeaseRenewer) -> None:
        ended, open_one = lease_of("ended"), lease_of("open")
        for lease in (ended, open_one):
            keeper.open(lease)
        await quota.next_stream()
        await quota.answer()
        await asyncio.sleep(0.001)
        keeper.ask(ended, 500)
        keeper.ask(open_one, 500)
        keeper.close(ended)
        request = await quota.answer()
        assert [lease.request_id for lease in request.leases] == ["open"]
        assert list(keeper.open_request_ids()) == ["open"]

    keeping(scenario)


def test_only_a_lease_that_runs_short_asks_between_two_beats() -> None:
    async def scenario(quota: Replicas, keeper: LeaseRenewer) -> None:
        loop = asyncio.get_running_loop()
        short, other = lease_of("short"), lease_of("other")
        for lease in (short, other):
            keeper.open(lease)
        await quota.next_stream()
        beat = await quota.answer()
        began_s = loop.time()
        assert [lease.wanted_output_tokens for lease in beat.leases] == [0, 0]
        keeper.ask(short, 500)
        asked = await quota.answer()
        assert loop.time() - began_s < 0.1
        assert [lease.request_id for lease in asked.leases] == ["short"]
        beat = await quota.answer()
        assert abs(loop.time() - began_s - BEAT_S) < 0.1
        assert [lease.request_id for lease in beat.leases] == ["short", "other"]
        assert beat.leases[0].wanted_output_tokens == 0, "it was granted"

    keeping(scenario)


def test_a_renewal_says_what_may_be_produced_and_never_more_produced_than_that() -> None:
    lease = lease_of()
    lease.num_credited, lease.num_produced, lease.num_wanted = 64, lambda: 70, 500
    renewal = lease.to_wire()
    assert (renewal.used_output_tokens, renewal.produced_output_tokens) == (500, 64)
    assert (renewal.granted_output_tokens, renewal.wanted_output_tokens) == (100, 500)
    lease.num_produced = lambda: 20
    assert lease.to_wire().produced_output_tokens == 20


def test_a_renewal_admits_the_whole_grant_which_credit_reaches_before_the_next_renewal() -> None:
    lease = lease_of()
    lease.num_credited = 64
    assert lease.to_wire().used_output_tokens == lease.num_granted == 100


def test_a_lease_that_quota_does_not_know_is_not_renewed_and_answered_here() -> None:
    async def scenario(quota: Replicas, keeper: LeaseRenewer) -> None:
        local = lease_of("local", local=True)
        keeper.open(local)
        keeper.open(lease_of("known"))
        await quota.next_stream()
        request = await quota.answer()
        assert [lease.request_id for lease in request.leases] == ["known"]
        keeper.ask(local, 500)
        assert local.num_granted == 500

    keeping(scenario)


def test_while_no_replica_answers_soft_tenants_go_on_and_hard_budgets_pause() -> None:
    async def scenario(quota: Replicas, keeper: LeaseRenewer) -> None:
        soft, hard = lease_of("soft"), hard_lease("hard")
        for lease in (soft, hard):
            keeper.open(lease)
        first = await quota.next_stream()
        await quota.answer()
        await asyncio.sleep(0.001)
        for lease in (soft, hard):
            keeper.ask(lease, 500)
        await first.read()
        quota.is_down = True
        await first.close()
        await asyncio.sleep(1)
        assert (soft.num_granted, hard.num_granted, hard.standing) == (500, 100, Standing.AWAY)
        keeper.ask(soft, 900)
        assert soft.num_granted == 900

    keeping(scenario)


def test_while_no_replica_answers_keys_share_their_tenants_minute() -> None:
    async def scenario(quota: Replicas, keeper: LeaseRenewer) -> None:
        quota.is_down = True
        await asyncio.sleep(1)
        tenant = AccountLimits("tenant:acme", tokens_per_minute=600)
        first, second = (
            lease_of(key, accounts=(AccountLimits(key), tenant)) for key in ("one", "two")
        )
        for lease in (first, second):
            keeper.open(lease)
            keeper.ask(lease, 600)
        assert (first.num_granted, second.num_granted) == (600, 100)
        assert second.standing is Standing.SHORT
        assert second.spent_limit == "tokens per minute of the tenant"
        await asyncio.sleep(30)
        assert 100 < second.num_granted <= 400

    keeping(scenario)


def test_an_answer_of_an_outage_goes_on_when_quota_says_that_its_budget_has_more() -> None:
    async def scenario(quota: Replicas, keeper: LeaseRenewer) -> None:
        lease = lease_of(local=True, accounts=(AccountLimits("k", budget_tokens=400),))
        keeper.open(lease)
        keeper.ask(lease, 300)
        assert (lease.num_granted, lease.standing) == (100, Standing.AWAY)
        state = failure_pb2.AccountState(owner="k", remaining_budget=100)
        keeper.ask(lease, 200)
        assert lease.num_granted == 200
        keeper.ask(lease, 300)
        keeper._buckets.quota_answers(failure_pb2.LimitState(accounts=[state]))
        await beat(quota)
        assert (lease.num_granted, lease.standing) == (300, Standing.HELD)

    keeping(scenario)


def test_open_leases_are_counted_by_each_of_their_accounts() -> None:
    async def scenario(quota: Replicas, keeper: LeaseRenewer) -> None:
        tenant = AccountLimits("tenant:acme")
        leases = [lease_of(key, accounts=(AccountLimits(key), tenant)) for key in ("one", "two")]
        for lease in leases:
            keeper.open(lease)
        assert [keeper.num_open_of(name) for name in ("one", "tenant:acme", "other")] == [1, 2, 0]
        keeper.close(leases[0])
        keeper.close(leases[0])
        assert [keeper.num_open_of(name) for name in ("one", "tenant:acme")] == [0, 1]

    keeping(scenario)


def test_an_outage_refuses_no_hard_budget_that_asked_for_nothing() -> None:
    async def scenario(quota: Replicas, keeper: LeaseRenewer) -> None:
        lease = hard_lease()
        keeper.open(lease)
        await quota.next_stream()
        await quota.answer()
        quota.is_down = True
        await quota.streams[0].close()
        await asyncio.sleep(1)
        assert lease.standing is Standing.HELD

    keeping(scenario)


def test_an_outage_grants_nothing_that_quota_refused_before() -> None:
    async def scenario(quota: Replicas, keeper: LeaseRenewer) -> None:
        lease = lease_of()
        keeper.open(lease)
        await quota.next_stream()
        await quota.answer()
        keeper.ask(lease, 500)
        await quota.answer(granted=100, state=REFUSED)
        quota.is_down = True
        await quota.streams[0].close()
        await asyncio.sleep(1)
        assert lease.num_granted == 100

    keeping(scenario)


def test_an_ask_before_the_first_stream_is_open_waits_for_it() -> None:
    async def scenario(quota: Replicas, keeper: LeaseRenewer) -> None:
        lease = hard_lease()
        keeper.open(lease)
        keeper.ask(lease, 500)
        assert lease.standing is Standing.HELD
        await quota.next_stream()
        await quota.answer()
        await asyncio.sleep(0.001)
        assert lease.num_granted == 500

    keeping(scenario)


def test_pauses_grow_anew_in_each_outage() -> None:
    async def scenario(quota: Replicas, keeper: LeaseRenewer) -> None:
        keeper.open(lease_of())
        quota.is_down = True
        await asyncio.sleep(60)
        quota.is_down = False
        await quota.next_stream()
        await quota.answer()
        quota.is_down, quota.num_tries = True, 0
        await quota.streams[0].close()
        await asyncio.sleep(0.5)
        assert quota.num_tries >= 3

    keeping(scenario)


def test_a_quota_service_that_is_away_is_tried_with_growing_pauses() -> None:
    async def scenario(quota: Replicas, keeper: LeaseRenewer) -> None:
        quota.is_down = True
        await asyncio.sleep(60)
        assert 20 <= quota.num_tries <= 60

    keeping(scenario)


async def beat(quota: Replicas) -> None:
    """Answer the first renewal of a stream."""
    await quota.next_stream()
    await quota.answer()
    await asyncio.sleep(0.001)


def test_a_refusal_ends_with_the_next_grant() -> None:
    async def scenario(quota: Replicas, keeper: LeaseRenewer) -> None:
        lease = lease_of()
        keeper.open(lease)
        await beat(quota)
        keeper.ask(lease, 500)
        await quota.answer(granted=100, state=REFUSED)
        # The next renewal asks again.
        await quota.answer()
        await asyncio.sleep(0.001)
        assert (lease.num_granted, lease.standing) == (500, Standing.HELD)

    keeping(scenario)


def test_a_shortage_is_asked_for_again_in_a_slice_and_when_the_minute_has_room() -> None:
    async def scenario(quota: Replicas, keeper: LeaseRenewer) -> None:
        loop = asyncio.get_running_loop()
        lease = lease_of()
        keeper.open(lease)
        await beat(quota)
        keeper.ask(lease, 500)
        await quota.answer(granted=100, state=SHORT, retry_after_ms=3000)
        asked_s = loop.time()
        asked = await quota.answer(granted=100, state=SHORT, retry_after_ms=800)
        assert loop.time() - asked_s < 0.01
        assert asked.leases[0].wanted_output_tokens == 100 + MIN_SLICE_TOKENS
        assert lease.standing is Standing.SHORT
        await quota.answer()
        assert abs(loop.time() - asked_s - 0.8) < 0.01
        await asyncio.sleep(0.001)
        assert (lease.num_granted, lease.standing) == (100 + MIN_SLICE_TOKENS, Standing.HELD)

    keeping(scenario)


def test_leases_of_one_key_that_wait_for_its_minute_are_served_in_their_order() -> None:
    async def scenario(quota: Replicas, keeper: LeaseRenewer) -> None:
        leases = [lease_of(f"r{number}") for number in range(3)]
        for lease in leases:
            keeper.open(lease)
        await beat(quota)
        for lease in leases:
            keeper.ask(lease, 500)
        await quota.answer(granted=100, state=SHORT, retry_after_ms=900)
        served = []
        for _ in leases:
            asked = await quota.answer(granted=100, state=SHORT, retry_after_ms=100)
            assert len(asked.leases) == 1, "only the first in line asks"
            asked = await quota.answer()
            served += [renewal.request_id for renewal in asked.leases]
        assert served == ["r0", "r1", "r2"]

    keeping(scenario)


def test_a_lease_that_ends_while_it_waits_makes_room_for_the_next_in_line() -> None:
    async def scenario(quota: Replicas, keeper: LeaseRenewer) -> None:
        first, second = lease_of("first"), lease_of("second")
        for lease in (first, second):
            keeper.open(lease)
        await beat(quota)
        for lease in (first, second):
            keeper.ask(lease, 500)
        await quota.answer(granted=100, state=SHORT)
        await quota.answer(granted=100, state=SHORT, retry_after_ms=4000)
        await asyncio.sleep(0.001)
        keeper.close(first)
        asked = await quota.answer()
        assert [lease.request_id for lease in asked.leases] == ["second"]

    keeping(scenario)


def test_a_hard_budget_that_paused_goes_on_when_quota_is_back() -> None:
    async def scenario(quota: Replicas, keeper: LeaseRenewer) -> None:
        lease = hard_lease()
        keeper.open(lease)
        await beat(quota)
        quota.is_down = True
        await quota.streams[0].close()
        await asyncio.sleep(1)
        keeper.ask(lease, 500)
        assert lease.standing is Standing.AWAY
        quota.is_down = False
        await beat(quota)
        assert (lease.num_granted, lease.standing) == (500, Standing.HELD)

    keeping(scenario)


def test_quota_has_heard_of_the_workers_when_the_last_beat_is_over() -> None:
    async def scenario(quota: Replicas, keeper: LeaseRenewer) -> None:
        await quota.next_stream()
        await quota.answer()
        keeper.totals_of_workers = lambda: [quota_pb2.WorkerTotals(worker_id="d0")]
        async with asyncio.TaskGroup() as tasks:
            last = tasks.create_task(keeper.beat())
            request = await quota.streams[-1].read()
            assert [worker.worker_id for worker in request.workers] == ["d0"]
            await asyncio.sleep(0.01)
            assert not last.done()
            await quota.streams[-1].write(quota_pb2.RenewResponse(num_gateways=1))

    keeping(scenario)


def test_a_last_beat_waits_for_a_quota_that_is_away_for_a_moment_at_most() -> None:
    async def scenario(quota: Replicas, keeper: LeaseRenewer) -> None:
        await quota.next_stream()
        await quota.answer()
        async with asyncio.timeout(1.1):
            await keeper.beat()

    keeping(scenario)

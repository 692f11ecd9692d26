"""Reserve and settle over an in-process Redis double: buckets, slots, budgets, tenants."""

from datetime import datetime

import msgspec
import pytest

from baton.wire import failures, key_limits, key_registry
from baton.wire.v1 import quota_pb2


async def test_reservation_takes_from_both_buckets_and_reports_them(bench):
    key = await bench.new_key(requests_per_minute=60, tokens_per_minute=6000)
    response = await bench.reserve(key, "r1", prompt=10, output=90)
    assert response.granted_output_tokens == 90
    assert response.expires_in_ms == 30_000
    limits = response.limits
    assert (limits.limit_requests, limits.remaining_requests) == (60, 59)
    assert (limits.limit_tokens, limits.remaining_tokens) == (6000, 5900)
    assert (limits.reset_requests_ms, limits.reset_tokens_ms) == (1000, 1000)


async def test_repeated_reservation_gets_the_same_grant_and_takes_nothing(bench):
    key = await bench.new_key(tokens_per_minute=6000, concurrency=1)
    await bench.reserve(key, "r1")
    bench.pass_time(0.5)
    response = await bench.reserve(key, "r1")
    assert response.granted_output_tokens == 90
    assert response.expires_in_ms == 29_500
    assert response.limits.remaining_tokens == 5950
    assert await bench.slots(key) == 1


async def test_request_id_of_another_keys_open_request_is_refused(bench):
    first, second = await bench.new_key(), await bench.new_key(concurrency=1)
    await bench.reserve(first, "r1")
    with pytest.raises(failures.InvalidRequest, match="used before"):
        await bench.reserve(second, "r1")
    assert await bench.slots(second) == 0
    assert (await bench.reserve(first, "r1")).granted_output_tokens == 90


async def test_request_id_of_a_finished_request_is_refused(bench):
    key = await bench.new_key()
    await bench.reserve(key, "r1")
    await bench.settle(key, "r1")
    with pytest.raises(failures.InvalidRequest, match="used before"):
        await bench.reserve(key, "r1")


async def test_requests_over_the_rate_wait_exactly_until_the_bucket_refilled(bench):
    key = await bench.new_key(requests_per_minute=7)
    for number in range(7):
        await bench.reserve(key, f"r{number}")
    with pytest.raises(failures.LimitExceeded) as refused:
        await bench.reserve(key, "late")
    assert refused.value.reason == "rate_limit_exceeded"
    assert refused.value.retry_after_s == 8.572
    assert refused.value.limits.remaining_requests == 0
    bench.pass_time(8.571)
    with pytest.raises(failures.LimitExceeded):
        await bench.reserve(key, "late")
    bench.pass_time(0.001)
    assert (await bench.reserve(key, "late")).limits.remaining_requests == 0


async def test_tokens_over_the_rate_wait_exactly_until_the_bucket_refilled(bench):
    key = await bench.new_key(tokens_per_minute=1000)
    await bench.reserve(key, "r1", prompt=100, output=800)
    with pytest.raises(failures.LimitExceeded) as refused:
        await bench.reserve(key, "r2", prompt=100, output=100)
    assert refused.value.retry_after_s == 6.0
    assert refused.value.limits.remaining_tokens == 100
    bench.pass_time(5.999)
    with pytest.raises(failures.LimitExceeded):
        await bench.reserve(key, "r2", prompt=100, output=100)
    bench.pass_time(0.001)
    await bench.reserve(key, "r2", prompt=100, output=100)


async def test_idle_buckets_hold_at_most_one_minute(bench):
    key = await bench.new_key(requests_per_minute=60, tokens_per_minute=6000)
    await bench.reserve(key, "r1", prompt=10, output=90)
    bench.pass_time(3600)
    limits = (await bench.reserve(key, "r2", prompt=10, output=90)).limits
    assert (limits.remaining_requests, limits.remaining_tokens) == (59, 5900)


async def test_refused_reservation_takes_nothing(bench):
    key = await bench.new_key(
        requests_per_minute=10, tokens_per_minute=100, budget_tokens=500, budget_period="day"
    )
    await bench.reserve(key, "r1", prompt=10, output=80)
    with pytest.raises(failures.LimitExceeded) as refused:
        await bench.reserve(key, "r2", prompt=10, output=10)
    assert refused.value.limits.remaining_requests == 9
    assert await bench.budget(key) == (0, 90)
    assert await bench.slots(key) == 1


async def test_settling_gives_back_what_was_not_used(bench):
    key = await bench.new_key(
        tokens_per_minute=1000, concurrency=2, budget_tokens=5000, budget_period="day"
    )
    await bench.reserve(key, "r1", prompt=10, output=490)
    woken = []
    bench.listeners.append(woken.append)
    response = await bench.settle(key, "r1", prompt=10, output=20)
    assert not response.repeated_settle
    assert (await bench.left(key))[0] == 970
    assert await bench.budget(key) == (30, 0)
    assert await bench.slots(key) == 0
    assert woken == ["acme"]


async def test_what_is_given_back_never_fills_a_bucket_beyond_its_limit(bench):
    key = await bench.new_key(tokens_per_minute=6000)
    await bench.reserve(key, "r1")
    bench.pass_time(29)
    await bench.settle(key, "r1")
    assert await bench.left(key) == (6000, 0)


async def test_second_settle_changes_nothing_and_says_so(bench):
    key = await bench.new_key(budget_tokens=5000, budget_period="day")
    await bench.reserve(key, "r1")
    await bench.settle(key, "r1", output=20)
    assert (await bench.settle(key, "r1", output=70)).repeated_settle
    assert await bench.budget(key) == (30, 0)
    assert await bench.num_stream_entries() == 1


async def test_settle_of_an_unknown_request_is_debited_in_full(bench):
    key = await bench.new_key(
        requests_per_minute=10, tokens_per_minute=1000, budget_tokens=5000, budget_period="day"
    )
    await bench.settle(key, "never-reserved", prompt=100, output=50)
    assert await bench.left(key) == (850, 9)
    assert await bench.budget(key) == (150, 0)
    assert (await bench.settle(key, "never-reserved")).repeated_settle


async def test_debt_of_late_settles_is_bounded_by_one_bucket(bench):
    key = await bench.new_key(tokens_per_minute=100)
    for number in range(5):
        await bench.settle(key, f"late{number}", prompt=50, output=50)
    with pytest.raises(failures.LimitExceeded) as refused:
        await bench.reserve(key, "r1", prompt=10, output=0)
    assert refused.value.retry_after_s == 66.0


async def test_request_larger_than_the_whole_token_limit_can_never_run(bench):
    key = await bench.new_key(tokens_per_minute=100)
    with pytest.raises(failures.InvalidRequest) as refused:
        await bench.reserve(key, "r1", prompt=50, output=51)
    assert refused.value.reason == "request_exceeds_limit"
    assert refused.value.limits.limit_tokens == 100


async def test_concurrency_counts_open_leases_and_frees_on_settle(bench):
    key = await bench.new_key(concurrency=2)
    await bench.reserve(key, "r1")
    await bench.reserve(key, "r2")
    with pytest.raises(failures.LimitExceeded, match="concurrent requests"):
        await bench.reserve(key, "r3")
    await bench.settle(key, "r1")
    await bench.reserve(key, "r3")


async def test_refusal_names_the_longest_of_its_waits(bench):
    key = await bench.new_key(tokens_per_minute=60_000, concurrency=1)
    await bench.reserve(key, "r1", prompt=10, output=59_990)
    with pytest.raises(failures.LimitExceeded) as refused:
        await bench.reserve(key, "r2", prompt=10, output=0)
    assert refused.value.retry_after_s == 1.0, "tokens are there in 10 ms, a slot is not"


async def test_slots_of_a_lost_gateway_are_free_after_the_lease(bench):
    key = await bench.new_key(concurrency=1)
    await bench.reserve(key, "r1")
    bench.pass_time(29.999)
    with pytest.raises(failures.LimitExceeded):
        await bench.reserve(key, "r2")
    bench.pass_time(0.001)
    await bench.reserve(key, "r2")


async def test_budget_counts_held_tokens_and_waits_for_the_next_day(bench):
    key = await bench.new_key(budget_tokens=250, budget_period="day")
    await bench.reserve(key, "r1")
    await bench.reserve(key, "r2")
    with pytest.raises(failures.LimitExceeded) as refused:
        await bench.reserve(key, "r3")
    assert refused.value.reason == "insufficient_quota"
    assert refused.value.retry_after_s == 16 * 3600
    bench.pass_time(16 * 3600 - 0.001)
    await bench.settle(key, "r1", output=90)
    await bench.settle(key, "r2", output=90)
    with pytest.raises(failures.LimitExceeded):
        await bench.reserve(key, "r3")
    bench.pass_time(0.001)
    await bench.reserve(key, "r3")
    assert await bench.budget(key, "d20270116") == (0, 100)


@pytest.mark.parametrize(("period", "window"), [("day", "d20270115"), ("month", "m202701")])
async def test_a_window_is_forgotten_when_it_is_long_over_and_not_before(bench, period, window):
    key = await bench.new_key(budget_tokens=1000, budget_period=period)
    name = f"baton:{{acme}}:budget:{key.key_id}:{window}"
    longest_month_ms = 31 * 86_400_000
    for step in (bench.reserve, bench.settle):
        await step(key, "r1")
        assert longest_month_ms < await bench.store.execute("PTTL", name) < 2 * longest_month_ms
        await bench.store.execute("PERSIST", name)


async def test_hold_stays_in_the_window_in_which_it_was_reserved(bench):
    key = await bench.new_key(budget_tokens=250, budget_period="day")
    bench.pass_time(16 * 3600 - 10)
    await bench.reserve(key, "r1")
    bench.pass_time(20)
    await bench.settle(key, "r1", output=20)
    assert await bench.budget(key, "d20270115") == (30, 0)
    assert await bench.budget(key, "d20270116") == (0, 0)


@pytest.mark.parametrize(
    ("now", "window", "end"),
    [
        ("2027-01-15T08:00:00", "m202701", "2027-02-01T00:00:00"),
        ("2027-12-31T23:59:59", "m202712", "2028-01-01T00:00:00"),
        ("2028-01-01T00:00:00", "m202801", "2028-02-01T00:00:00"),
        ("2028-02-28T12:00:00", "m202802", "2028-03-01T00:00:00"),
        ("2027-02-28T23:00:00", "m202702", "2027-03-01T00:00:00"),
        ("2100-02-28T23:00:00", "m210002", "2100-03-01T00:00:00"),
        ("2028-11-30T00:00:00", "m202811", "2028-12-01T00:00:00"),
    ],
)
async def test_month_windows_follow_the_utc_calendar(bench, now, window, end):
    start, last = (datetime.fromisoformat(text + "+00:00").timestamp() for text in (now, end))
    bench.now_ms[0] = int(start * 1000)
    key = await bench.new_key(budget_tokens=150, budget_period="month")
    await bench.reserve(key, "r1")
    assert await bench.budget(key, window) == (0, 100)
    with pytest.raises(failures.LimitExceeded) as refused:
        await bench.reserve(key, "r2")
    assert refused.value.retry_after_s == last - start


async def test_settle_of_a_foreign_tenant_has_no_effect(bench):
    key = await bench.new_key("acme", budget_tokens=5000, budget_period="day", concurrency=5)
    other = await bench.new_key("other")
    await bench.reserve(key, "r1")
    await bench.settle(other, "r1", output=0)
    assert await bench.budget(key) == (0, 100)
    assert await bench.slots(key) == 1
    assert not (await bench.settle(key, "r1")).repeated_settle
    assert await bench.budget(key) == (30, 0)


async def test_keys_of_one_tenant_have_their_own_limits(bench):
    first = await bench.new_key(concurrency=1)
    second = await bench.new_key(concurrency=1)
    await bench.reserve(first, "r1")
    await bench.reserve(second, "r2")
    with pytest.raises(failures.LimitExceeded):
        await bench.reserve(first, "r3")


async def test_revoked_key_cannot_reserve_but_its_open_request_settles(bench):
    key = await bench.new_key(budget_tokens=5000, budget_period="day")
    await bench.reserve(key, "r1")
    key_registry.append(bench.file, key_registry.Revocation(key.key_id, 0))
    await bench.registry.refresh()
    with pytest.raises(failures.AuthenticationFailed):
        await bench.reserve(key, "r2")
    await bench.settle(key, "r1", output=20)
    assert await bench.budget(key) == (30, 0)


async def test_raised_limit_applies_to_what_comes_next(bench):
    key = await bench.new_key(tokens_per_minute=100)
    await bench.reserve(key, "r1", prompt=100, output=0)
    raised = key_limits.KeyLimits(tokens_per_minute=6000)
    await bench.declare(msgspec.structs.replace(key, limits=raised))
    bench.pass_time(1)
    response = await bench.reserve(key, "r2", prompt=100, output=0)
    assert (response.limits.limit_tokens, response.limits.remaining_tokens) == (6000, 0)


async def test_clock_that_steps_back_neither_refills_nor_freezes_a_bucket(bench):
    key = await bench.new_key(tokens_per_minute=600)
    await bench.reserve(key, "r1", prompt=600, output=0)
    bench.pass_time(-3600)
    with pytest.raises(failures.LimitExceeded) as refused:
        await bench.reserve(key, "r2", prompt=10, output=0)
    assert refused.value.retry_after_s == 1.0
    bench.pass_time(1)
    await bench.reserve(key, "r2", prompt=10, output=0)


@pytest.mark.parametrize(
    ("tenant", "request_id"),
    [("a}b{", "r"), ("", "r"), ("a", ""), ("a", "r r"), ("a", "r" * 129), ("a b", "r")],
)
async def test_names_that_could_leave_the_hash_slot_are_refused(bench, tenant, request_id):
    request = quota_pb2.ReserveRequest(request_id=request_id, tenant=tenant, key_id="key_1")
    with pytest.raises(failures.InvalidRequest):
        await bench.ledger.reserve(request)


async def test_impossible_token_counts_are_refused(bench):
    key = await bench.new_key()
    with pytest.raises(failures.InvalidRequest) as refused:
        await bench.reserve(key, "r1", output=2**63)
    assert refused.value.reason == "request_exceeds_limit"


async def test_finished_requests_are_forgotten_after_a_while(bench):
    key = await bench.new_key()
    await bench.reserve(key, "r1")
    lease = "baton:{acme}:request:r1"
    assert await bench.store.execute("PTTL", lease) == -1
    await bench.settle(key, "r1")
    assert await bench.store.execute("PTTL", lease) == -2
    [settled] = await bench.store.execute("KEYS", "baton:{acme}:settled:*")
    assert 3_600_000 < await bench.store.execute("PTTL", settled) <= 1.5 * 3_600_000
    [digest] = await bench.store.execute("SMEMBERS", settled)
    assert len(digest) == 14


@pytest.mark.parametrize("second", [-1, 0, 1, 899, 1800, 3600])
async def test_a_finished_request_is_known_for_as_long_as_it_says_and_if_the_clock_steps_back(
    bench, second
):
    key = await bench.new_key()
    await bench.settle(key, "r1")
    bench.pass_time(second)
    assert (await bench.settle(key, "r1")).repeated_settle
    assert (await bench.renew(key, "r1")).state == quota_pb2.LeaseState.STATE_LOST
    with pytest.raises(failures.InvalidRequest):
        await bench.reserve(key, "r1")

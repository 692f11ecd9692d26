"""Leases over an in-process Redis double: renew, extend, lapse, come back, get lost."""

import pytest

from baton.wire import failures
from baton.wire.v1 import quota_pb2

HELD = quota_pb2.LeaseState.STATE_HELD
REFUSED = quota_pb2.LeaseState.STATE_REFUSED
LOST = quota_pb2.LeaseState.STATE_LOST
SHORT = quota_pb2.LeaseState.STATE_SHORT


async def test_renewal_keeps_the_lease(bench):
    key = await bench.new_key(concurrency=1)
    await bench.reserve(key, "r1")
    for _ in range(10):
        bench.pass_time(29)
        state = await bench.renew(key, "r1", used=50)
        assert (state.state, state.granted_output_tokens) == (HELD, 90)
        assert state.expires_in_ms == 30_000


async def test_extension_is_granted_in_full_and_held(bench):
    key = await bench.new_key(tokens_per_minute=1000, budget_tokens=1000, budget_period="day")
    await bench.reserve(key, "r1", prompt=10, output=90)
    state = await bench.renew(key, "r1", used=80, wanted=400)
    assert (state.state, state.granted_output_tokens) == (HELD, 400)
    assert await bench.budget(key) == (0, 410)
    await bench.settle(key, "r1", prompt=10, output=390)
    assert await bench.left(key) == (600, 0)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"tokens_per_minute": 400}, SHORT),
        ({"budget_tokens": 400, "budget_period": "day"}, REFUSED),
        ({"tokens_per_minute": 400, "budget_tokens": 400, "budget_period": "day"}, REFUSED),
    ],
)
async def test_refused_extension_leaves_the_old_grant(bench, limits, expected):
    key = await bench.new_key(**limits)
    await bench.reserve(key, "r1", prompt=10, output=90)
    state = await bench.renew(key, "r1", used=80, wanted=391)
    assert (state.state, state.granted_output_tokens) == (expected, 90)
    assert (await bench.renew(key, "r1", used=80, wanted=390)).state == HELD


async def test_extension_that_the_minute_has_no_room_for_fits_after_the_time_it_was_told(bench):
    key = await bench.new_key(tokens_per_minute=600)
    await bench.reserve(key, "r1", prompt=10, output=90)
    state = await bench.renew(key, "r1", used=80, wanted=640)
    assert (state.state, state.retry_after_ms) == (SHORT, 5000)
    bench.pass_time(4.9)
    assert (await bench.renew(key, "r1", used=80, wanted=640)).state == SHORT
    bench.pass_time(0.1)
    state = await bench.renew(key, "r1", used=80, wanted=640)
    assert (state.state, state.granted_output_tokens, state.retry_after_ms) == (HELD, 640, 0)


async def test_reservation_that_was_never_renewed_is_charged_in_full_when_it_lapses(bench):
    key = await bench.new_key(
        tokens_per_minute=1000, concurrency=1, budget_tokens=5000, budget_period="day"
    )
    await bench.reserve(key, "r1")
    bench.pass_time(30)
    assert await bench.ledger.reap() == 1
    assert await bench.ledger.reap() == 0
    assert await bench.budget(key) == (100, 0)
    assert await bench.slots(key) == 0


async def test_lapsed_lease_is_charged_its_reported_credit_and_corrected_by_a_late_settle(bench):
    key = await bench.new_key(budget_tokens=5000, budget_period="day")
    await bench.reserve(key, "r1")
    await bench.renew(key, "r1", used=40, produced=20)
    bench.pass_time(31)
    await bench.ledger.reap()
    assert await bench.budget(key) == (50, 0)
    assert not (await bench.settle(key, "r1", output=25)).repeated_settle
    assert await bench.budget(key) == (35, 0)
    assert (await bench.settle(key, "r1", output=90)).repeated_settle


async def test_late_message_never_lowers_the_reported_credit(bench):
    key = await bench.new_key(budget_tokens=5000, budget_period="day")
    await bench.reserve(key, "r1")
    await bench.renew(key, "r1", used=60)
    await bench.renew(key, "r1", used=40)
    bench.pass_time(31)
    await bench.ledger.reap()
    assert await bench.budget(key) == (70, 0)


@pytest.mark.parametrize(("said", "charged"), [((60, 40), 60), ((60, 1000), 90)])
async def test_lapsed_lease_is_charged_and_billed_the_most_it_said_within_its_grant(
    bench, said, charged
):
    key = await bench.new_key(budget_tokens=5000, budget_period="day")
    await bench.reserve(key, "r1", prompt=10, output=90)
    for num_tokens in said:
        await bench.renew(key, "r1", used=num_tokens, produced=num_tokens)
    bench.pass_time(31)
    await bench.ledger.reap()
    assert await bench.budget(key) == (10 + charged, 0)
    ((_, fields),) = await bench.store.execute("XRANGE", "baton:{acme}:usage", "-", "+")
    assert int(fields[b"produced"]) == charged


async def test_renewal_by_a_clock_that_stepped_back_does_not_shorten_the_lease(bench):
    key = await bench.new_key()
    await bench.reserve(key, "r1")
    bench.pass_time(-10)
    assert (await bench.renew(key, "r1")).expires_in_ms == 40_000


async def test_lapsed_lease_is_held_again_when_there_is_room(bench):
    key = await bench.new_key(concurrency=1, budget_tokens=150, budget_period="day")
    await bench.reserve(key, "r1")
    await bench.renew(key, "r1", used=40)
    bench.pass_time(31)
    assert (await bench.renew(key, "r1", used=50)).state == HELD
    assert await bench.budget(key) == (0, 100)
    assert await bench.slots(key) == 1


async def test_lapsed_lease_is_held_again_also_when_the_minute_has_no_room(bench):
    key = await bench.new_key(tokens_per_minute=200)
    await bench.reserve(key, "r1", prompt=10, output=90)
    await bench.renew(key, "r1", used=40)
    bench.pass_time(31)
    await bench.reserve(key, "r2", prompt=0, output=200)
    assert (await bench.renew(key, "r1", used=50)).state == HELD
    await bench.settle(key, "r2", prompt=0, output=200)
    assert await bench.left(key) == (0, 0)


async def test_lease_that_is_held_again_is_remembered_as_long_as_it_is_held(bench):
    key = await bench.new_key(concurrency=1)
    await bench.reserve(key, "r1")
    bench.pass_time(31)
    await bench.ledger.reap()
    name = "baton:{acme}:request:r1"
    assert 0 < await bench.store.execute("PTTL", name) <= 3_600_000
    assert (await bench.renew(key, "r1", used=50)).state == HELD
    assert await bench.store.execute("PTTL", name) == -1


@pytest.mark.parametrize(
    "limits",
    [
        {"concurrency": 1},
        {"budget_tokens": 150, "budget_period": "day"},
    ],
)
async def test_lapsed_lease_is_lost_when_its_room_is_taken(bench, limits):
    key = await bench.new_key(**limits)
    await bench.reserve(key, "r1")
    await bench.renew(key, "r1", used=20)
    bench.pass_time(31)
    await bench.reserve(key, "r2")
    assert (await bench.renew(key, "r1", used=30)).state == LOST


async def test_unknown_and_settled_leases_are_lost(bench):
    key = await bench.new_key()
    assert (await bench.renew(key, "never")).state == LOST
    await bench.reserve(key, "r1")
    await bench.settle(key, "r1")
    assert (await bench.renew(key, "r1")).state == LOST


async def test_lease_that_the_store_lost_is_held_again_by_its_renewal(bench):
    key = await bench.new_key(
        tokens_per_minute=100, concurrency=1, budget_tokens=5000, budget_period="day"
    )
    await bench.reserve(key, "r1")
    await bench.store.execute("FLUSHALL")
    renewal = quota_pb2.LeaseRenewal(
        request_id="r1", tenant=key.tenant, key_id=key.key_id, model="m",
        num_prompt_tokens=10, granted_output_tokens=400, used_output_tokens=300,
    )  # fmt: skip
    response = await bench.ledger.renew(quota_pb2.RenewRequest(leases=[renewal]))
    assert (response.leases[0].state, response.leases[0].granted_output_tokens) == (HELD, 400)
    assert await bench.budget(key) == (0, 410)
    assert await bench.slots(key) == 1
    await bench.settle(key, "r1", output=350)
    assert await bench.budget(key) == (360, 0)
    response = await bench.ledger.renew(quota_pb2.RenewRequest(leases=[renewal]))
    assert response.leases[0].state == LOST


async def test_lost_lease_without_budget_for_it_stays_lost(bench):
    key = await bench.new_key(budget_tokens=100, budget_period="day")
    await bench.settle(key, "earlier", prompt=50, output=0)
    renewal = quota_pb2.LeaseRenewal(
        request_id="r1", tenant=key.tenant, key_id=key.key_id, granted_output_tokens=51
    )
    response = await bench.ledger.renew(quota_pb2.RenewRequest(leases=[renewal]))
    assert response.leases[0].state == LOST


async def test_one_message_renews_leases_of_many_tenants_in_its_order(bench):
    keys = [await bench.new_key(tenant) for tenant in ("b", "a", "b", "c")]
    renewals = []
    for number, key in enumerate(keys):
        await bench.reserve(key, f"r{number}", output=number + 1)
        renewals.append(quota_pb2.LeaseRenewal(request_id=f"r{number}", tenant=key.tenant))
    renewals.append(quota_pb2.LeaseRenewal(request_id="r0", tenant="bad tenant"))
    response = await bench.ledger.renew(quota_pb2.RenewRequest(leases=renewals))
    assert [lease.request_id for lease in response.leases] == ["r0", "r1", "r2", "r3", "r0"]
    assert [lease.granted_output_tokens for lease in response.leases] == [1, 2, 3, 4, 0]
    assert response.leases[-1].state == LOST


async def test_more_leases_than_one_call_takes_are_all_renewed(bench):
    key = await bench.new_key()
    ids = [f"r{number}" for number in range(150)]
    for request_id in ids:
        await bench.reserve(key, request_id)
    renewals = [quota_pb2.LeaseRenewal(request_id=r, tenant=key.tenant) for r in ids]
    response = await bench.ledger.renew(quota_pb2.RenewRequest(leases=renewals))
    assert [lease.request_id for lease in response.leases] == ids
    assert {lease.state for lease in response.leases} == {HELD}


async def test_more_expired_leases_than_one_call_takes_are_all_reaped(bench):
    key = await bench.new_key(budget_tokens=100_000, budget_period="day")
    for number in range(150):
        await bench.reserve(key, f"r{number}")
    bench.pass_time(31)
    assert await bench.ledger.reap() == 150
    assert await bench.budget(key) == (15_000, 0)
    assert await bench.slots(key) == 0


async def test_corrupt_value_of_one_tenant_leaves_the_others_alone(bench):
    sick, well = await bench.new_key("a-sick"), await bench.new_key("well")
    await bench.reserve(sick, "r1")
    await bench.reserve(well, "r2")
    await bench.store.execute("SET", "baton:{a-sick}:leases", "nonsense")
    with pytest.raises(failures.Unavailable) as refused:
        await bench.reserve(sick, "r3")
    assert refused.value.reason == "quota_unavailable"
    renewals = [
        quota_pb2.LeaseRenewal(request_id="r1", tenant="a-sick"),
        quota_pb2.LeaseRenewal(request_id="r2", tenant="well"),
    ]
    response = await bench.ledger.renew(quota_pb2.RenewRequest(leases=renewals))
    states = [(lease.request_id, lease.state) for lease in response.leases]
    assert states == [("r1", quota_pb2.LeaseState.STATE_UNSPECIFIED), ("r2", HELD)]
    bench.pass_time(31)
    assert await bench.ledger.reap() == 1
    await bench.reserve(well, "r4")


async def test_gateways_that_tell_their_names_are_counted_for_fifteen_seconds(bench):
    async def beat(gateway_id):
        request = quota_pb2.RenewRequest(gateway_id=gateway_id)
        return (await bench.ledger.renew(request)).num_gateways

    assert await beat("") == 0
    assert [await beat(name) for name in ("gw-1", "gw-2", "gw-1")] == [1, 2, 2]
    bench.pass_time(10)
    assert await beat("gw-1") == 2
    bench.pass_time(5)
    assert await beat("gw-1") == 1


async def reserve_estimate(bench, key, likely, fewest, output=90):
    request = quota_pb2.ReserveRequest(
        request_id="r1",
        tenant=key.tenant,
        key_id=key.key_id,
        model="m",
        num_prompt_tokens=likely,
        min_prompt_tokens=fewest,
        num_output_tokens=output,
    )
    return await bench.ledger.reserve(request)


async def reserve_exactly(bench, key, prompt, output=90):
    request = quota_pb2.ReserveRequest(
        request_id="r1",
        tenant=key.tenant,
        key_id=key.key_id,
        model="m",
        num_prompt_tokens=prompt,
        num_output_tokens=output,
        replaces_estimate=True,
    )
    return await bench.ledger.reserve(request)


async def test_an_estimate_without_room_is_held_for_the_fewest_tokens(bench):
    key = await bench.new_key(tokens_per_minute=600, requests_per_minute=10)
    answer = await reserve_estimate(bench, key, likely=1000, fewest=20)
    assert (answer.num_prompt_tokens, answer.granted_output_tokens) == (20, 90)
    assert answer.limits.remaining_tokens == 490
    again = await reserve_estimate(bench, key, likely=1000, fewest=20)
    assert again.num_prompt_tokens == 20
    await bench.settle(key, "r1")
    narrow = await bench.new_key("other", tokens_per_minute=600)
    with pytest.raises(failures.InvalidRequest, match="at least 690 tokens"):
        await reserve_estimate(bench, narrow, 1000, 600)


async def test_the_exact_amounts_replace_an_estimate_and_take_no_second_request(bench):
    key = await bench.new_key(
        tokens_per_minute=600, requests_per_minute=10, concurrency=1, budget_tokens=600,
        budget_period="day",
    )  # fmt: skip
    await reserve_estimate(bench, key, likely=100, fewest=20)
    for _ in range(2):
        answer = await reserve_exactly(bench, key, prompt=300, output=80)
        assert (answer.num_prompt_tokens, answer.granted_output_tokens) == (300, 80)
        limits = answer.limits
        assert (limits.remaining_tokens, limits.remaining_requests) == (220, 9)
    assert await bench.budget(key) == (0, 380)
    assert await bench.slots(key) == 1
    await bench.settle(key, "r1", prompt=300, output=7)
    assert await bench.budget(key) == (307, 0)


async def test_exact_amounts_that_are_refused_leave_the_estimate_until_it_is_settled(bench):
    key = await bench.new_key(tokens_per_minute=600, requests_per_minute=10)
    await reserve_estimate(bench, key, likely=1000, fewest=20)
    with pytest.raises(failures.InvalidRequest, match=" 690 tokens"):
        await reserve_exactly(bench, key, prompt=600)
    await bench.settle(key, "r1", prompt=0, output=0)
    assert await bench.left(key) == (600, 9)


async def test_a_renewal_gives_back_what_an_estimate_held_too_much(bench):
    key = await bench.new_key(tokens_per_minute=600, budget_tokens=600, budget_period="day")
    await reserve_estimate(bench, key, likely=400, fewest=20)
    renewal = quota_pb2.LeaseRenewal(
        request_id="r1",
        tenant=key.tenant,
        key_id=key.key_id,
        model="m",
        num_prompt_tokens=100,
        granted_output_tokens=90,
        used_output_tokens=90,
    )
    await bench.ledger.renew(quota_pb2.RenewRequest(leases=[renewal]))
    assert await bench.budget(key) == (0, 190)
    assert (await bench.reserve(key, "r2", 0, 1)).limits.remaining_tokens == 409

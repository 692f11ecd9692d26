"""Limits of tenants, organisations and models, and budgets of money, over an in-process Redis."""

import json

import msgspec
import pytest

from baton.wire import failures
from baton.wire.key_limits import ModelLimits
from baton.wire.v1 import quota_pb2
from services.quota.archive import read_entries
from services.quota.prices import Prices

PRICE = {"prompt": "1", "cached": "0.5", "output": "2"}


@pytest.fixture
def priced(bench, tmp_path):
    """A bench at which a token of model m costs 1000 (prompt), 500 (cached) or 2000 (output)."""
    file = tmp_path / "prices.json"
    file.write_text(json.dumps({"version": "v1", "currency": "USD", "models": {"m": PRICE}}))
    bench.ledger._prices = Prices(file)
    return bench


async def refusal_of(bench, key, request_id, **tokens) -> failures.BatonError:
    with pytest.raises(failures.BatonError) as refused:
        await bench.reserve(key, request_id, **tokens)
    return refused.value


async def test_keys_of_a_tenant_share_its_limits(bench):
    first, second = await bench.new_key(), await bench.new_key()
    await bench.limit("tenant", "acme", concurrency=1, tokens_per_minute=1000)
    limits = (await bench.reserve(first, "r1")).limits
    assert (limits.limit_tokens, limits.remaining_tokens) == (1000, 900)
    assert limits.tokens_scope == "tenant"
    error = await refusal_of(bench, second, "r2")
    assert "concurrent requests of the tenant" in error.message
    await bench.settle(first, "r1")
    assert (await bench.reserve(second, "r2")).limits.remaining_tokens == 870


async def test_tenants_of_an_organisation_share_its_limits_and_others_do_not(bench):
    search, ads = await bench.new_key("bigco/search"), await bench.new_key("bigco/ads")
    plain = await bench.new_key("bigco")
    await bench.limit("organisation", "bigco", requests_per_minute=1)
    await bench.reserve(search, "r1")
    error = await refusal_of(bench, ads, "r1")
    assert "requests per minute of the organisation" in error.message
    assert error.limits.requests_scope == "organisation"
    assert not (await bench.reserve(plain, "r1")).limits.limit_requests


async def test_a_reservation_that_one_level_refuses_takes_nothing_at_the_others(bench):
    key = await bench.new_key("bigco/search", tokens_per_minute=1000)
    await bench.limit("tenant", "bigco/search", concurrency=5)
    await bench.limit("organisation", "bigco", budget_tokens=50, budget_period="day")
    error = await refusal_of(bench, key, "r1")
    assert error.reason == "insufficient_quota"
    assert "budget of tokens of the organisation" in error.message
    assert error.limits.remaining_tokens == 1000
    assert await bench.store.execute("HGET", "baton:{bigco}/search:account:-", "slots") is None


async def test_a_model_has_limits_of_its_own_beside_those_of_all_models(bench):
    limits = {"m": ModelLimits(requests_per_minute=1)}
    key = await bench.new_key(requests_per_minute=60, by_model=limits)
    await bench.reserve(key, "r1")
    error = await refusal_of(bench, key, "r2")
    assert "requests per minute of the key, model m" in error.message
    assert (error.limits.limit_requests, error.limits.requests_scope) == (1, "key, model m")
    other = quota_pb2.ReserveRequest(
        request_id="r3", tenant="acme", key_id=key.key_id, model="other", num_prompt_tokens=1
    )
    assert (await bench.ledger.reserve(other)).limits.remaining_requests == 58


async def test_limits_that_are_taken_away_leave_no_hold_behind(bench):
    key = await bench.new_key()
    await bench.limit("tenant", "acme", concurrency=2, budget_tokens=500, budget_period="day")
    await bench.reserve(key, "r1")
    await bench.limit("tenant", "acme")
    await bench.settle(key, "r1")
    await bench.limit("tenant", "acme", concurrency=1, budget_tokens=500, budget_period="day")
    await bench.reserve(key, "r2")
    budget = await bench.store.execute("HMGET", "baton:{acme}:budget:-:d20270115", "spent", "held")
    assert budget == [b"30", b"100"]


async def test_a_request_that_began_before_a_limit_gives_nothing_back_to_it(bench):
    key = await bench.new_key()
    await bench.reserve(key, "r1")
    await bench.limit("tenant", "acme", concurrency=1, budget_tokens=500, budget_period="day")
    await bench.reserve(key, "r2")
    await bench.settle(key, "r1")
    error = await refusal_of(bench, key, "r3")
    assert "concurrent requests of the tenant" in error.message


async def test_money_is_held_at_the_price_of_the_grant_and_settled_at_the_real_tokens(priced):
    key = await priced.new_key(budget_cost=400_000, cost_period="day")
    await priced.reserve(key, "r1", prompt=10, output=90)
    error = await refusal_of(priced, key, "r2", prompt=10, output=101)
    assert error.reason == "insufficient_quota"
    assert "budget of money of the key" in error.message
    usage = quota_pb2.UsageRecord(
        request_id="r1", tenant="acme", key_id=key.key_id, model="m",
        num_prompt_tokens=10, num_cached_tokens=4, num_output_tokens=20,
    )  # fmt: skip
    await priced.ledger.settle(quota_pb2.SettleRequest(usage=usage))
    window = f"baton:{{acme}}:budget:{key.key_id}:d20270115"
    assert await priced.store.execute("HMGET", window, "cost_spent", "cost_held") == [
        b"48000", b"0",
    ]  # fmt: skip
    entries = await priced.store.execute("XRANGE", "baton:{acme}:usage", "-", "+")
    [[line], _] = read_entries("acme", entries)
    assert (line.cost, line.price_version) == (48_000, "v1")


async def test_a_new_price_list_changes_no_request_that_runs(priced):
    key = await priced.new_key(budget_cost=10**9, cost_period="day")
    await priced.reserve(key, "r1")
    priced.ledger._prices = Prices()
    await priced.settle(key, "r1", prompt=10, output=20)
    window = f"baton:{{acme}}:budget:{key.key_id}:d20270115"
    assert await priced.store.execute("HGET", window, "cost_spent") == b"50000"


async def test_an_extension_that_a_budget_refuses_names_it(priced):
    key = await priced.new_key()
    await priced.limit("tenant", "acme", budget_cost=200_000, cost_period="month")
    await priced.reserve(key, "r1", prompt=10, output=90)
    state = await priced.renew(key, "r1", used=50, wanted=95)
    assert (state.state, state.granted_output_tokens) == (quota_pb2.LeaseState.STATE_HELD, 95)
    state = await priced.renew(key, "r1", used=50, wanted=96)
    assert (state.state, state.granted_output_tokens) == (quota_pb2.LeaseState.STATE_REFUSED, 95)
    assert state.spent_limit == "budget of money of the tenant"


@pytest.mark.parametrize(
    ("limits", "granted"),
    [
        ({}, 512),
        ({"tokens_per_minute": 800}, 100),
        ({"tokens_per_minute": 104}, 4),
        ({"tokens_per_minute": 101}, 2),
        ({"budget_tokens": 300, "budget_period": "day"}, 200),
        ({"budget_cost": 300_000, "cost_period": "day"}, 100),
    ],
)
async def test_a_default_maximum_is_cut_to_what_can_ever_fit(priced, limits, granted):
    key = await priced.new_key()
    await priced.limit("tenant", "acme", **limits)
    request = quota_pb2.ReserveRequest(
        request_id="r1", tenant="acme", key_id=key.key_id, model="m",
        num_prompt_tokens=100 if granted > 2 else 99, num_output_tokens=512, min_output_tokens=1,
    )  # fmt: skip
    assert (await priced.ledger.reserve(request)).granted_output_tokens == granted


async def test_a_key_is_told_the_limits_of_all_its_levels(bench):
    key = await bench.new_key("bigco/search", by_model={"m": ModelLimits(concurrency=3)})
    await bench.limit("tenant", "bigco/search", tokens_per_minute=10)
    await bench.limit(
        "organisation", "bigco", budget_tokens=9, budget_period="day", hard_budget=True
    )
    answer = await bench.registry.authenticate(bytes.fromhex(key.digest))
    assert [(each.owner, each.model) for each in answer.more_limits] == [
        (key.key_id, "m"), ("tenant:bigco/search", ""), ("organisation:bigco", ""),
    ]  # fmt: skip
    assert answer.more_limits[2].limits.hard_budget


async def test_a_moved_tenants_keys_work_under_the_organisations_limits(bench):
    key = await bench.new_key("search")
    await bench.limit("organisation", "bigco", concurrency=1)
    moved = msgspec.structs.replace(key, tenant="bigco/search")
    await bench.declare(moved)
    assert (await bench.registry.authenticate(bytes.fromhex(key.digest))).tenant == "bigco/search"
    await bench.reserve(moved, "r1")
    assert "organisation" in (await refusal_of(bench, moved, "r2")).message


async def test_a_model_name_that_looks_like_limits_finds_none(bench):
    key = await bench.new_key(by_model={"m": ModelLimits(requests_per_minute=1)})
    for number, model in enumerate(["m 1", "1 0", ";m", ""]):
        request = quota_pb2.ReserveRequest(
            request_id=f"r{number}", tenant="acme", key_id=key.key_id, model=model
        )
        assert not (await bench.ledger.reserve(request)).limits.limit_requests


async def test_the_longest_wait_of_all_levels_is_told_with_its_owner(bench):
    key = await bench.new_key(tokens_per_minute=6000)
    await bench.limit("tenant", "acme", tokens_per_minute=5900)
    await bench.reserve(key, "r1", prompt=5000, output=0)
    error = await refusal_of(bench, key, "r2", prompt=5000, output=0)
    assert error.retry_after_s == pytest.approx((5000 - 900) * 60 / 5900, abs=0.001)
    assert (error.limits.tokens_scope, error.limits.remaining_tokens) == ("tenant", 900)


async def test_an_answer_tells_what_each_level_has_left(priced):
    key = await priced.new_key("bigco/search", tokens_per_minute=900, requests_per_minute=5)
    of_model = {"m": ModelLimits(budget_tokens=500, budget_period="day")}
    await priced.limit("tenant", "bigco/search", by_model=of_model)
    await priced.limit("organisation", "bigco", budget_cost=400_000, cost_period="day")
    told = [await priced.reserve(key, "r1", prompt=10, output=90)]
    refused = await refusal_of(priced, key, "r2", prompt=10, output=110)
    for limits in (told[0].limits, refused.limits):
        assert [
            (
                each.owner, each.model, each.remaining_requests, each.remaining_tokens,
                each.remaining_budget, each.remaining_cost,
            )
            for each in limits.accounts
        ] == [
            (key.key_id, "", 4, 800, 0, 0),
            ("tenant:bigco/search", "", 0, 0, 0, 0),
            ("tenant:bigco/search", "m", 0, 0, 400, 0),
            ("organisation:bigco", "", 0, 0, 0, 210_000),
        ]  # fmt: skip
        assert not limits.accounts[0].HasField("remaining_budget")
    assert (told[0].price.prompt, told[0].price.output) == (1_000_000, 2_000_000)


async def test_an_extension_without_room_names_the_level_that_waits_longest(bench):
    key = await bench.new_key(tokens_per_minute=150)
    of_model = {"m": ModelLimits(tokens_per_minute=110)}
    await bench.limit("tenant", "acme", of_model, tokens_per_minute=120)
    await bench.reserve(key, "r1", prompt=10, output=90)
    renewal = quota_pb2.LeaseRenewal(
        request_id="r1", tenant="acme", model="m", used_output_tokens=50, wanted_output_tokens=150
    )
    response = await bench.ledger.renew(quota_pb2.RenewRequest(leases=[renewal]))
    [state] = response.leases
    assert state.state == quota_pb2.LeaseState.STATE_SHORT
    assert state.spent_limit == "tokens per minute of the tenant, model m"

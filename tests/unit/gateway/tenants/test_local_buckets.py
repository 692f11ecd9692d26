"""The limits of soft tenants while quota is away."""

import random
from collections import Counter
from contextlib import suppress

import pytest

from baton.testing.virtual_clock import VirtualClock
from baton.wire.failures import LimitExceeded, Unavailable
from baton.wire.v1 import failure_pb2, quota_pb2
from services.gateway.tenants.local_buckets import LocalBuckets
from services.gateway.tenants.principal import AccountLimits, Principal


def principal_of(
    key_id: str = "k", shared: tuple[AccountLimits, ...] = (), **limits: int
) -> Principal:
    """A key of acme with these limits, and those that it shares."""
    own = AccountLimits(key_id, **limits)  # type: ignore[arg-type]
    return Principal("acme", key_id, limits=(own, *shared))


def told(owner: str = "k", **remaining: int) -> failure_pb2.LimitState:
    """An answer of quota that says what is left of an account."""
    state = failure_pb2.AccountState(owner=owner)
    for name, number in remaining.items():
        setattr(state, f"remaining_{name}", number)
    return failure_pb2.LimitState(accounts=[state])


def test_a_local_bucket_starts_at_the_last_count_of_quota_and_refills() -> None:
    clock = VirtualClock()
    buckets = LocalBuckets(clock)
    principal = principal_of("k", requests_per_minute=60, tokens_per_minute=600)
    request = quota_pb2.ReserveRequest(num_prompt_tokens=10, num_output_tokens=90)
    buckets.quota_answers(told(requests=5, tokens=120))
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
        buckets.reserve(principal_of("k"), request)


def test_keys_of_one_tenant_have_buckets_of_their_own() -> None:
    buckets = LocalBuckets(VirtualClock())
    request = quota_pb2.ReserveRequest(num_output_tokens=10)
    free, narrow = principal_of("free"), principal_of("narrow", requests_per_minute=1)
    buckets.reserve(free, request)
    buckets.reserve(narrow, request)
    with pytest.raises(LimitExceeded):
        buckets.reserve(narrow, request)
    buckets.reserve(free, request)


def test_the_limits_of_a_key_are_divided_among_the_gateways() -> None:
    principal = principal_of("k", tokens_per_minute=60_000)
    request = quota_pb2.ReserveRequest(num_prompt_tokens=100, num_output_tokens=500)
    num_granted = 0
    for _ in range(50):
        buckets = LocalBuckets(VirtualClock())
        buckets.num_gateways = 50
        with pytest.raises(LimitExceeded):
            while True:
                buckets.reserve(principal, request)
                num_granted += 600
    assert num_granted == 60_000


def test_a_share_starts_with_its_part_of_the_last_count() -> None:
    buckets = LocalBuckets(VirtualClock())
    buckets.num_gateways = 4
    principal = principal_of("k", requests_per_minute=40, tokens_per_minute=4000)
    buckets.quota_answers(told(requests=20, tokens=800))
    answer = buckets.reserve(principal, quota_pb2.ReserveRequest(num_output_tokens=150))
    limits = answer.limits
    assert (limits.limit_requests, limits.remaining_requests) == (10, 4)
    assert (limits.limit_tokens, limits.remaining_tokens) == (1000, 50)


def test_a_request_that_is_larger_than_a_share_goes_on_when_the_share_is_full() -> None:
    clock = VirtualClock()
    buckets = LocalBuckets(clock)
    buckets.num_gateways = 10
    principal = principal_of("k", tokens_per_minute=10_000)
    request = quota_pb2.ReserveRequest(num_prompt_tokens=3000)
    buckets.reserve(principal, request)
    with pytest.raises(LimitExceeded) as caught:
        buckets.reserve(principal, request)
    assert caught.value.retry_after_s == pytest.approx(180), "the debt is paid back first"
    clock.advance(180)
    buckets.reserve(principal, request)


def test_a_soft_budget_gets_a_quarter_of_itself_while_quota_is_away() -> None:
    buckets = LocalBuckets(VirtualClock())
    buckets.num_gateways = 2
    principal = principal_of("k", budget_tokens=8000)
    request = quota_pb2.ReserveRequest(num_output_tokens=400)
    buckets.reserve(principal, request)
    buckets.reserve(principal, request)
    with pytest.raises(Unavailable) as caught:
        buckets.reserve(principal, request)
    assert caught.value.reason == "quota_unavailable"
    buckets.quota_answers(told(budget=1000))
    buckets.reserve(principal, request)
    with pytest.raises(Unavailable):
        buckets.reserve(principal, request)


def test_each_level_starts_with_what_quota_said_of_it() -> None:
    buckets = LocalBuckets(VirtualClock())
    shared = (AccountLimits("tenant:acme", tokens_per_minute=600),)
    first, second = (principal_of(key, shared, tokens_per_minute=500) for key in ("one", "two"))
    request = quota_pb2.ReserveRequest(num_output_tokens=50)
    buckets.quota_answers(told("tenant:acme", tokens=120))
    buckets.quota_answers(told("one", tokens=70))
    buckets.reserve(first, request)
    with pytest.raises(LimitExceeded) as caught:
        buckets.reserve(first, request)
    assert caught.value.limits is not None
    assert caught.value.limits.tokens_scope == "key"
    buckets.reserve(second, request)
    with pytest.raises(LimitExceeded) as caught:
        buckets.reserve(second, request)
    assert caught.value.limits is not None
    assert caught.value.limits.tokens_scope == "tenant"


def test_a_budget_of_money_gives_its_part_at_the_price_that_quota_told_last() -> None:
    buckets = LocalBuckets(VirtualClock())
    buckets.num_gateways = 2
    shared = (AccountLimits("tenant:acme", budget_cost=8000),)
    principal = principal_of("k", shared)
    request = quota_pb2.ReserveRequest(model="m", num_prompt_tokens=10, num_output_tokens=20)
    with pytest.raises(Unavailable):
        buckets.reserve(principal, request)
    price = quota_pb2.TokenPrice(prompt=10_000, output=30_000)
    limits = told("tenant:acme", cost=1500)
    buckets.quota_grants("m", quota_pb2.ReserveResponse(limits=limits, price=price))
    buckets.reserve(principal, request)
    with pytest.raises(Unavailable):
        buckets.extend(principal.limits, "m", 2)
    assert buckets.extend(principal.limits, "m", 1) == (0, "")


def test_an_extension_comes_out_of_the_same_bucket() -> None:
    clock = VirtualClock()
    buckets = LocalBuckets(clock)
    principal = principal_of("k", tokens_per_minute=600)
    buckets.reserve(principal, quota_pb2.ReserveRequest(num_output_tokens=500))
    assert buckets.extend(principal.limits, "", 60) == (0, "")
    assert buckets.extend(principal.limits, "", 60) == (
        pytest.approx(2),
        "tokens per minute of the key",
    )
    clock.advance(2)
    assert buckets.extend(principal.limits, "", 60) == (0, "")


def test_an_extension_comes_out_of_the_buckets_of_all_levels() -> None:
    clock = VirtualClock()
    buckets = LocalBuckets(clock)
    shared = (
        AccountLimits("tenant:acme", tokens_per_minute=600),
        AccountLimits("organisation:big", "large", tokens_per_minute=300),
    )
    first, second = (principal_of(key, shared, tokens_per_minute=10_000) for key in ("one", "two"))
    assert buckets.extend(first.limits_for("small"), "small", 400) == (0, "")
    assert buckets.extend(second.limits_for("small"), "small", 260) == (
        pytest.approx(6),
        "tokens per minute of the tenant",
    )
    assert buckets.extend(second.limits_for("large"), "large", 200) == (0, "")
    clock.advance(60)
    assert buckets.extend(first.limits_for("large"), "large", 300) == (0, "")
    wait_s, limit = buckets.extend(second.limits_for("large"), "large", 50)
    assert wait_s == pytest.approx(10)
    assert limit == "tokens per minute of the organisation, model large"


def test_an_extension_takes_no_more_of_a_budget_than_its_part() -> None:
    buckets = LocalBuckets(VirtualClock())
    shared = (AccountLimits("tenant:acme", budget_tokens=400),)
    principal = principal_of("k", shared)
    buckets.reserve(principal, quota_pb2.ReserveRequest(num_output_tokens=60))
    buckets.extend(principal.limits, "", 40)
    with pytest.raises(Unavailable):
        buckets.extend(principal.limits, "", 1)


def test_a_hard_budget_of_one_model_stops_that_model_only() -> None:
    buckets = LocalBuckets(VirtualClock())
    hard = AccountLimits("k", "large", budget_tokens=10**6, hard_budget=True)
    principal = principal_of("k", (hard,))
    assert (principal.has_hard_budget("large"), principal.has_hard_budget("small")) == (True, False)
    buckets.reserve(principal, quota_pb2.ReserveRequest(model="small"))
    with pytest.raises(Unavailable):
        buckets.reserve(principal, quota_pb2.ReserveRequest(model="large"))


def test_open_requests_are_limited_to_a_share_of_one_at_least_at_each_level() -> None:
    buckets = LocalBuckets(VirtualClock())
    buckets.num_gateways = 4
    request = quota_pb2.ReserveRequest(num_output_tokens=1)
    shared = (AccountLimits("tenant:acme", concurrency=12),)
    wide, narrow = principal_of("wide", shared, concurrency=8), principal_of("k", concurrency=2)
    open_of = {"wide": 1, "tenant:acme": 2, "k": 0}
    buckets.reserve(wide, request, open_of.__getitem__)
    buckets.reserve(narrow, request, open_of.__getitem__)
    for name, num in {"wide": 2, "tenant:acme": 3}.items():
        with pytest.raises(LimitExceeded):
            buckets.reserve(wide, request, (open_of | {name: num}).__getitem__)
    with pytest.raises(LimitExceeded):
        buckets.reserve(narrow, request, (open_of | {"k": 1}).__getitem__)


def test_keys_share_their_tenants_limits_and_a_models_hold_for_it_alone() -> None:
    buckets = LocalBuckets(VirtualClock())
    shared = (
        AccountLimits("tenant:acme", requests_per_minute=2),
        AccountLimits("tenant:acme", "large", requests_per_minute=1),
    )
    first, second = (principal_of(key, shared) for key in ("one", "two"))
    buckets.reserve(first, quota_pb2.ReserveRequest(model="large"))
    with pytest.raises(LimitExceeded) as caught:
        buckets.reserve(second, quota_pb2.ReserveRequest(model="large"))
    assert caught.value.retry_after_s == pytest.approx(60)
    buckets.reserve(second, quota_pb2.ReserveRequest(model="small"))
    with pytest.raises(LimitExceeded):
        buckets.reserve(first, quota_pb2.ReserveRequest(model="small"))


def test_a_tenants_budget_gives_its_part_to_all_its_keys_together() -> None:
    buckets = LocalBuckets(VirtualClock())
    shared = (AccountLimits("tenant:acme", budget_tokens=400),)
    request = quota_pb2.ReserveRequest(num_output_tokens=60)
    buckets.reserve(principal_of("one", shared), request)
    second = principal_of("two", shared)
    with pytest.raises(Unavailable):
        buckets.reserve(second, request)
    buckets.quota_answers(told("tenant:acme"))
    buckets.reserve(second, request)


def test_no_level_of_an_outage_of_a_minute_gets_more_than_was_left_and_refills() -> None:
    """Four gateways, two tenants of an organisation with three keys each, all of them greedy."""
    clock, rng, spent = VirtualClock(), random.Random(5), Counter[str]()
    organisation = AccountLimits(
        "organisation:big", requests_per_minute=500, tokens_per_minute=30_000, budget_tokens=200_000
    )
    keys = []
    for name in ("search", "ads"):
        tenant = AccountLimits(f"tenant:big/{name}", tokens_per_minute=20_000, concurrency=40)
        of_model = AccountLimits(f"tenant:big/{name}", "m", tokens_per_minute=12_000)
        keys += [
            principal_of(f"{name}-{number}", (tenant, of_model, organisation),
                         tokens_per_minute=8000)
            for number in range(3)
        ]  # fmt: skip
    gateways = [LocalBuckets(clock) for _ in range(4)]
    for buckets in gateways:
        buckets.num_gateways = 4
        buckets.quota_answers(told("organisation:big", tokens=3000, requests=50, budget=190_000))
        buckets.quota_answers(told("search-0", tokens=100))
    for _ in range(240):
        for buckets in gateways:
            bounds = (principal := rng.choice(keys)).limits
            num_tokens = rng.randint(1, 250)
            request = quota_pb2.ReserveRequest(model="m", num_output_tokens=num_tokens)
            with suppress(LimitExceeded, Unavailable):
                buckets.reserve(principal, request)
                spent.update({f"{bound.name} tokens": num_tokens for bound in bounds})
                spent.update(f"{bound.name} requests" for bound in bounds)
            with suppress(LimitExceeded, Unavailable):
                if buckets.extend(bounds, "m", num_tokens) == (0, ""):
                    spent.update({f"{bound.name} tokens": num_tokens for bound in bounds})
        clock.advance(0.25)
    assert 25_000 < spent["organisation:big tokens"] <= 3000 + 30_000
    assert spent["organisation:big requests"] <= 50 + 500
    for name in ("search", "ads"):
        assert spent[f"tenant:big/{name} tokens"] <= 20_000 + 20_000
        assert spent[f"tenant:big/{name}@m tokens"] <= 12_000 + 12_000
    assert spent["search-0 tokens"] <= 100 + 8000


@pytest.mark.parametrize(
    ("limits", "granted"),
    [
        ({"tokens_per_minute": 60_000}, 512),
        ({"tokens_per_minute": 1000}, 125),
        ({"tokens_per_minute": 600}, 75),
        ({"tokens_per_minute": 100}, 12),
    ],
)
def test_a_default_maximum_is_cut_to_what_can_ever_fit(
    limits: dict[str, int], granted: int
) -> None:
    buckets = LocalBuckets(VirtualClock())
    principal = principal_of("k", (AccountLimits("tenant:acme", **limits),))
    request = quota_pb2.ReserveRequest(
        num_prompt_tokens=32, num_output_tokens=512, min_output_tokens=1
    )
    assert buckets.reserve(principal, request).granted_output_tokens == granted

"""Wrong keys per client address."""

import random

import pytest

from baton.testing.virtual_clock import VirtualClock
from baton.wire.failures import AuthenticationFailed, LimitExceeded
from services.gateway.clients.protocols import CallContext
from services.gateway.http.request import client_address_of
from services.gateway.tenants.auth import (
    MAX_ADDRESSES,
    MAX_WRONG_KEYS,
    REFILL_S,
    Authenticator,
    BadKeys,
)
from services.gateway.tenants.quota_outage import GuardedQuota
from tests.unit.gateway.fakes import KEY, SECRET, FakeQuota

CONTEXT = CallContext("req_1", 1.0, "")
GUESSER, OTHER = "192.0.2.1", "192.0.2.2"


def guess(bad_keys: BadKeys, address: str, count: int = MAX_WRONG_KEYS) -> None:
    for _ in range(count):
        bad_keys.check(address)
        bad_keys.note(address)


def test_after_many_wrong_keys_the_next_one_must_wait_its_turn() -> None:
    clock = VirtualClock()
    bad_keys = BadKeys(clock)
    guess(bad_keys, GUESSER)
    with pytest.raises(LimitExceeded) as caught:
        bad_keys.check(GUESSER)
    assert caught.value.retry_after_s == pytest.approx(REFILL_S)
    bad_keys.check(OTHER)
    clock.advance(REFILL_S)
    guess(bad_keys, GUESSER, 1)
    with pytest.raises(LimitExceeded):
        bad_keys.check(GUESSER)


def test_the_neighbours_of_an_ipv6_address_count_with_it() -> None:
    bad_keys = BadKeys(VirtualClock())
    guess(bad_keys, "2001:db8::1")
    with pytest.raises(LimitExceeded):
        bad_keys.check("2001:db8::ffff:2")
    bad_keys.check("2001:db8:0:1::1")


def test_memory_is_bounded_whatever_addresses_guess() -> None:
    bad_keys = BadKeys(VirtualClock())
    for number in range(MAX_ADDRESSES + 10):
        bad_keys.note(f"address {number}")
    assert len(bad_keys._full_at_s) == MAX_ADDRESSES


async def test_a_good_key_passes_from_the_address_of_a_guesser_without_quota_being_asked_more() -> (
    None
):
    clock, quota = VirtualClock(), FakeQuota()
    guarded = GuardedQuota(quota, clock, random.Random(1))
    authenticator = Authenticator(guarded, (SECRET,), clock)
    await authenticator.authenticate(f"Bearer {KEY}", CONTEXT, GUESSER)
    quota.failure = AuthenticationFailed("unknown")
    for number in range(MAX_WRONG_KEYS):
        with pytest.raises(AuthenticationFailed):
            await authenticator.authenticate(f"Bearer wrong-{number}", CONTEXT, GUESSER)
    with pytest.raises(LimitExceeded):
        await authenticator.authenticate("Bearer wrong", CONTEXT, GUESSER)
    quota.failure = None
    clock.advance(REFILL_S)
    assert (await authenticator.authenticate(f"Bearer {KEY}", CONTEXT, GUESSER)).tenant == "acme"


async def test_one_wrong_key_sent_again_and_again_holds_no_new_key_of_its_address_back() -> None:
    clock, quota = VirtualClock(), FakeQuota()
    authenticator = Authenticator(GuardedQuota(quota, clock, random.Random(1)), (SECRET,), clock)
    quota.failure = AuthenticationFailed("unknown")
    for _ in range(1000):
        with pytest.raises(AuthenticationFailed):
            await authenticator.authenticate("Bearer wrong", CONTEXT, GUESSER)
        clock.advance(0.1)
    assert quota.num_authenticated <= 100 / REFILL_S + 1
    quota.failure = None
    assert (await authenticator.authenticate(f"Bearer {KEY}", CONTEXT, GUESSER)).tenant == "acme"


@pytest.mark.parametrize(
    ("forwarded", "num_proxies", "expected"),
    [
        ([], 0, "10.0.0.9"),
        ([b"1.1.1.1"], 0, "10.0.0.9"),
        ([b"6.6.6.6, 1.1.1.1"], 1, "1.1.1.1"),
        ([b"6.6.6.6", b"1.1.1.1,2.2.2.2"], 2, "1.1.1.1"),
        ([], 1, "10.0.0.9"),
    ],
)
def test_only_what_our_own_proxies_wrote_is_believed(
    forwarded: list[bytes], num_proxies: int, expected: str
) -> None:
    headers = [(b"x-forwarded-for", value) for value in forwarded]
    scope = {"headers": headers, "client": ("10.0.0.9", 1)}
    assert client_address_of(scope, num_proxies) == expected


def test_wrong_keys_that_were_looked_up_at_once_hold_their_address_back_for_no_longer() -> None:
    clock = VirtualClock()
    bad_keys = BadKeys(clock)
    for _ in range(100 * MAX_WRONG_KEYS):
        bad_keys.note(GUESSER)
    clock.advance(2 * REFILL_S)
    bad_keys.check(GUESSER)

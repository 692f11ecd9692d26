"""Keys, principals and the cache between."""

import asyncio
import random

import pytest

from baton.testing.virtual_clock import VirtualClock, run_virtual, virtual
from baton.wire.failures import (
    AuthenticationFailed,
    BatonError,
    DeadlineExceeded,
    LimitExceeded,
    Unavailable,
)
from baton.wire.key_registry import identity_digest, key_digest
from services.gateway.clients.protocols import CallContext
from services.gateway.tenants.auth import (
    MAX_WRONG_KEYS,
    REFILL_S,
    RETRY_S,
    WAIT_S,
    Authenticator,
    bearer_key,
)
from services.gateway.tenants.principal import KnownKey, VouchedIdentity
from services.gateway.tenants.quota_outage import GuardedQuota
from tests.unit.gateway.fakes import KEY, SECRET, FakeQuota

CONTEXT = CallContext("r1", 1.0)
HEADER = f"Bearer {KEY}"


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def quota() -> FakeQuota:
    return FakeQuota()


@pytest.fixture
def authenticator(quota: FakeQuota, clock: VirtualClock) -> Authenticator:
    return authenticator_of(quota, clock)


def authenticator_of(quota: FakeQuota, clock: VirtualClock) -> Authenticator:
    return Authenticator(GuardedQuota(quota, clock, random.Random(1)), (SECRET,), clock)


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (None, "missing_api_key"),
        ("", "missing_api_key"),
        ("Basic abc", "invalid_api_key"),
        ("Bearer ", "invalid_api_key"),
        ("Bearer", "invalid_api_key"),
        ("Bearer " + "x" * 1000, "invalid_api_key"),
    ],
)
def test_headers_without_a_usable_key(header: str | None, reason: str) -> None:
    with pytest.raises(AuthenticationFailed) as caught:
        bearer_key(header)
    assert caught.value.reason == reason


async def test_an_answer_is_fresh_for_five_seconds(
    authenticator: Authenticator, quota: FakeQuota, clock: VirtualClock
) -> None:
    principal = await authenticator.authenticate(HEADER, CONTEXT)
    assert (principal.tenant, principal.key_id) == ("acme", "key-1")
    clock.advance(4.9)
    await authenticator.authenticate(HEADER, CONTEXT)
    assert quota.num_authenticated == 1
    clock.advance(0.2)
    await authenticator.authenticate(HEADER, CONTEXT)
    assert quota.num_authenticated == 2


async def test_a_key_of_an_older_secret_works_and_a_wrong_one_does_not(
    quota: FakeQuota, clock: VirtualClock
) -> None:
    guarded = GuardedQuota(quota, clock, random.Random(1))
    rotated = Authenticator(guarded, (b"n" * 32, SECRET), clock)
    assert (await rotated.authenticate(HEADER, CONTEXT)).tenant == "acme"
    num_asked = quota.num_authenticated
    assert (await rotated.authenticate(HEADER, CONTEXT)).tenant == "acme"
    assert quota.num_authenticated == num_asked
    with pytest.raises(AuthenticationFailed):
        await rotated.authenticate("Bearer bt-wrong", CONTEXT)


async def test_a_key_that_is_kept_works_after_the_secret_is_changed_until_it_is_revoked(
    quota: FakeQuota, clock: VirtualClock
) -> None:
    guarded = GuardedQuota(quota, clock, random.Random(1))
    kept = await Authenticator(guarded, (SECRET, b"o" * 32), clock).lasting(HEADER)
    assert isinstance(kept, KnownKey)
    assert KEY.encode() not in kept.digests
    rotated = Authenticator(guarded, (b"n" * 32, SECRET), clock)
    assert (await rotated.authenticate(kept, CONTEXT)).tenant == "acme"
    quota.digests.clear()
    clock.advance(6)
    with pytest.raises(AuthenticationFailed):
        await rotated.authenticate(kept, CONTEXT)


async def test_an_identity_that_is_kept_has_the_models_of_its_token(
    quota: FakeQuota, authenticator: Authenticator
) -> None:
    quota.digests = {identity_digest(SECRET, "jwt:ann")}
    identity = VouchedIdentity("jwt:ann", ("small",))
    assert await authenticator.lasting(identity) == identity
    assert (await authenticator.authenticate(identity, CONTEXT)).allowed_models == ("small",)


@virtual
async def test_a_stale_answer_is_used_while_quota_is_away_for_15_minutes(
    authenticator: Authenticator, quota: FakeQuota, clock: VirtualClock
) -> None:
    await authenticator.authenticate(HEADER, CONTEXT)
    quota.failure = Unavailable("down")
    clock.advance(14 * 60)
    assert (await authenticator.authenticate(HEADER, CONTEXT)).tenant == "acme"
    clock.advance(2 * 60)
    with pytest.raises(Unavailable) as caught:
        await authenticator.authenticate(HEADER, CONTEXT)
    assert caught.value.reason == "quota_unavailable"


@virtual
async def test_an_unknown_key_needs_quota(authenticator: Authenticator, quota: FakeQuota) -> None:
    quota.failure = Unavailable("down")
    with pytest.raises(Unavailable):
        await authenticator.authenticate(HEADER, CONTEXT)


@virtual
async def test_an_unknown_key_is_asked_for_again_while_quota_comes_back() -> None:
    """Gateways, quota and its Redis may start at the same time."""
    loop, quota = asyncio.get_running_loop(), FakeQuota()
    clock = loop.clock  # type: ignore[attr-defined]
    guard = GuardedQuota(quota, clock, random.Random(1))
    probing = asyncio.create_task(guard.run())
    quota.failure = Unavailable("down")
    loop.call_later(4, setattr, quota, "failure", None)
    authenticator = Authenticator(guard, (SECRET,), clock)
    assert (await authenticator.authenticate(HEADER, CONTEXT)).tenant == "acme"
    assert 4 <= clock.now() < 6
    probing.cancel()


@pytest.mark.parametrize("failure", [Unavailable("down"), DeadlineExceeded("no answer")])
@virtual
async def test_an_unknown_key_is_waited_for_while_quota_is_away_but_not_for_ever(
    failure: BatonError,
) -> None:
    """A Redis that is being replaced, or its host, may refuse connections or say nothing."""
    clock, quota = asyncio.get_running_loop().clock, FakeQuota()  # type: ignore[attr-defined]
    authenticator = authenticator_of(quota, clock)
    quota.failure = failure
    with pytest.raises(Unavailable):
        await authenticator.authenticate(HEADER, CONTEXT)
    assert WAIT_S - 1 < clock.now() <= WAIT_S


@virtual
async def test_a_revoked_key_is_refused_once_its_answer_is_no_longer_fresh(
    authenticator: Authenticator, quota: FakeQuota, clock: VirtualClock
) -> None:
    await authenticator.authenticate(HEADER, CONTEXT)
    clock.advance(6)
    quota.failure = AuthenticationFailed("revoked")
    with pytest.raises(AuthenticationFailed):
        await authenticator.authenticate(HEADER, CONTEXT)
    quota.failure = Unavailable("down")
    with pytest.raises(AuthenticationFailed):
        await authenticator.authenticate(HEADER, CONTEXT)
    clock.advance(REFILL_S)
    with pytest.raises(Unavailable):
        await authenticator.authenticate(HEADER, CONTEXT)


async def test_the_key_itself_never_leaves(authenticator: Authenticator, quota: FakeQuota) -> None:
    seen: list[bytes] = []
    original = quota.authenticate

    async def spy(digest: bytes, context: CallContext):
        seen.append(digest)
        return await original(digest, context)

    quota.authenticate = spy  # type: ignore[method-assign]
    await authenticator.authenticate(HEADER, CONTEXT)
    assert len(seen[0]) == 32
    assert KEY.encode() not in seen[0]


async def test_a_burst_of_requests_of_one_key_is_one_call(
    authenticator: Authenticator, quota: FakeQuota
) -> None:
    answers = [authenticator.authenticate(HEADER, CONTEXT) for _ in range(500)]
    assert {each.key_id for each in await asyncio.gather(*answers)} == {"key-1"}
    assert quota.num_authenticated == 1


def test_a_request_that_leaves_takes_nobody_elses_answer_away() -> None:
    async def scenario() -> None:
        clock, quota = asyncio.get_running_loop().clock, FakeQuota()  # type: ignore[attr-defined]
        quota.authenticate_delay_s = 0.1
        authenticator = authenticator_of(quota, clock)
        first = asyncio.create_task(authenticator.authenticate(HEADER, CONTEXT))
        second = asyncio.create_task(authenticator.authenticate(HEADER, CONTEXT))
        await asyncio.sleep(0.05)
        first.cancel()
        assert (await second).tenant == "acme"
        assert quota.num_authenticated == 1

    run_virtual(scenario())


async def test_a_stale_answer_is_used_for_a_second_before_quota_is_asked_again(
    authenticator: Authenticator, quota: FakeQuota, clock: VirtualClock
) -> None:
    await authenticator.authenticate(HEADER, CONTEXT)
    quota.failure = Unavailable("down")
    clock.advance(6)
    for _ in range(10):
        await authenticator.authenticate(HEADER, CONTEXT)
    assert quota.num_authenticated == 2
    clock.advance(RETRY_S)
    quota.failure = AuthenticationFailed("revoked")
    with pytest.raises(AuthenticationFailed):
        await authenticator.authenticate(HEADER, CONTEXT)


class FakeTokens:
    """Vouches for tokens: the name in the middle of each, and models."""

    def __init__(self) -> None:
        self.models: tuple[str, ...] | None = None
        self.num_checks = 0
        self.known: dict[str, VouchedIdentity] = {}

    async def run(self) -> None:
        """Follow nothing."""

    def checked(self, token: str) -> VouchedIdentity | None:
        return self.known.get(token)

    async def identity(self, token: str) -> VouchedIdentity:
        self.num_checks += 1
        name = token.split(".")[1]
        if name == "forged":
            raise AuthenticationFailed("the token is not valid: it is forged")
        return VouchedIdentity(f"jwt:{name}", self.models)


async def test_a_token_has_the_principal_of_its_identity(
    quota: FakeQuota, clock: VirtualClock
) -> None:
    tokens = FakeTokens()
    guarded = GuardedQuota(quota, clock, random.Random(1))
    authenticator = Authenticator(guarded, (SECRET,), clock, tokens)
    quota.digests.add(identity_digest(SECRET, "jwt:acme"))
    principal = await authenticator.authenticate("Bearer eyJ.acme.sig", CONTEXT)
    assert (principal.tenant, principal.allowed_models) == ("acme", ())
    tokens.models = ("demo",)
    narrow = await authenticator.authenticate("Bearer eyJ.acme.sig", CONTEXT)
    assert narrow.allowed_models == ("demo",)
    for refused in ("eyJ.stranger.sig", "eyJ.forged.sig"):
        with pytest.raises(AuthenticationFailed):
            await authenticator.authenticate(f"Bearer {refused}", CONTEXT)
    assert (await authenticator.authenticate(HEADER, CONTEXT)).tenant == "acme"
    assert tokens.num_checks == 4, "an API key is not a token"


async def test_wrong_tokens_count_as_wrong_keys_of_their_address(
    quota: FakeQuota, clock: VirtualClock
) -> None:
    guarded = GuardedQuota(quota, clock, random.Random(1))
    authenticator = Authenticator(guarded, (SECRET,), clock, FakeTokens())
    for _ in range(MAX_WRONG_KEYS):
        with pytest.raises(AuthenticationFailed):
            await authenticator.authenticate("Bearer eyJ.forged.sig", CONTEXT, "10.0.0.1")
    with pytest.raises(LimitExceeded):
        await authenticator.authenticate("Bearer eyJ.forged.sig", CONTEXT, "10.0.0.1")


async def test_a_token_that_was_checked_is_not_held_back_for_wrong_ones_of_its_address(
    quota: FakeQuota, clock: VirtualClock
) -> None:
    tokens = FakeTokens()
    guarded = GuardedQuota(quota, clock, random.Random(1))
    authenticator = Authenticator(guarded, (SECRET,), clock, tokens)
    quota.digests.add(identity_digest(SECRET, "jwt:acme"))
    assert await authenticator.authenticate("Bearer eyJ.acme.sig", CONTEXT, "10.0.0.1")
    tokens.known["eyJ.acme.sig"] = VouchedIdentity("jwt:acme")
    for _ in range(MAX_WRONG_KEYS):
        with pytest.raises(AuthenticationFailed):
            await authenticator.authenticate("Bearer eyJ.forged.sig", CONTEXT, "10.0.0.1")
    principal = await authenticator.authenticate("Bearer eyJ.acme.sig", CONTEXT, "10.0.0.1")
    assert principal.tenant == "acme"


async def test_without_an_issuer_a_token_is_a_wrong_key(authenticator: Authenticator) -> None:
    with pytest.raises(AuthenticationFailed):
        await authenticator.authenticate("Bearer eyJ.acme.sig", CONTEXT)


def test_no_api_key_has_the_digest_of_an_identity() -> None:
    assert identity_digest(SECRET, "jwt:acme") != key_digest(SECRET, "jwt:acme")
    assert identity_digest(SECRET, "jwt:acme") != identity_digest(SECRET, "cert:acme")

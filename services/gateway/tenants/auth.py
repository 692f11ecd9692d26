"""API key -> principal, through the quota service, with a bounded cache.

An answer is fresh for as long as the quota service says (at most FRESH_S); a stale one is used
for STALE_S more, only while the quota service cannot answer. All requests of a key share one call.
A refusal holds for REFILL_S. Only the keyed digest of a key is kept and sent, never the key itself.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import IPv6Address, ip_address
from typing import Protocol

from baton.system.clock import Clock
from baton.wire.failures import AuthenticationFailed, DeadlineExceeded, LimitExceeded, Unavailable
from baton.wire.key_registry import identity_digest, key_digest
from baton.wire.v1 import quota_pb2
from services.gateway.clients.protocols import CallContext
from services.gateway.tenants.principal import KnownKey, Principal, VouchedIdentity
from services.gateway.tenants.quota_outage import GuardedQuota

FRESH_S = 5.0
STALE_S = 15 * 60.0
# After a call without an answer a stale answer is used for so long before the next call.
RETRY_S = 1.0
LOOKUP_TIMEOUT_S = 1.0
# A key that nobody here knows is asked for again after these, for WAIT_S in all: quota, or its
# Redis, is just coming back. A Redis that is being replaced refuses connections, or says nothing.
PAUSES_S = (0.25, 0.5, *[0.75] * 12)
WAIT_S = 10.0
MAX_CACHED_KEYS = 10_000
MAX_KEY_CHARS = 256
# A bucket: so many wrong keys at once, and then one more after each interval.
MAX_WRONG_KEYS = 20
REFILL_S = 3.0
MAX_ADDRESSES = 10_000
# The beginning of a JSON object in base64, as every token begins.
_TOKEN_START = "eyJ"

OlderDigests = Callable[[], list[bytes]]
# An authorization that may be kept.
LastingKey = VouchedIdentity | KnownKey


@dataclass(frozen=True, slots=True)
class _Cached:
    principal: Principal
    fetched_s: float
    # No call is made before.
    asked_again_s: float


def bearer_key(authorization: str | None) -> str:
    """The key in an Authorization header. Raises AuthenticationFailed."""
    if not authorization:
        raise AuthenticationFailed(
            "no API key given; send it as 'Authorization: Bearer <key>'", reason="missing_api_key"
        )
    scheme, _, key = authorization.partition(" ")
    key = key.strip()
    if scheme.lower() != "bearer" or not key:
        raise AuthenticationFailed(
            "the header Authorization must be 'Bearer <key>', and does not begin with 'Bearer '"
        )
    if len(key) > MAX_KEY_CHARS:
        raise AuthenticationFailed(f"the API key is longer than {MAX_KEY_CHARS} characters")
    return key


def is_token(authorization: str | None) -> bool:
    """True for a bearer that has the form of a JSON web token, which no API key has."""
    scheme, _, bearer = (authorization or "").partition(" ")
    is_bearer = scheme.lower() == "bearer"
    return is_bearer and bearer.lstrip().startswith(_TOKEN_START) and bearer.count(".") == 2


def _token_in(authorization: str | None) -> str:
    return (authorization or "").partition(" ")[2].strip()


class TokenChecker(Protocol):
    """Checks tokens of an issuer, whose keys `run` follows until cancelled."""

    async def run(self) -> None:
        """Follow the issuer's keys."""

    def checked(self, token: str) -> VouchedIdentity | None:
        """The identity of a token that was checked a moment ago; None when it was not."""

    async def identity(self, token: str) -> VouchedIdentity:
        """The identity that a token vouches for. Raises AuthenticationFailed, Unavailable."""


class BadKeys:
    """The wrong API keys of each client address: after many of them it must wait with the next.

    Only keys that quota refused count, and only unknown keys are held back: a client that shares an
    address with a guesser goes on with a key that this gateway has seen to be good. One wrong key
    that is sent again and again costs no more than comes back meanwhile. They are
    counted here and not in Envoy, whose limits cannot depend on an answer
    (docs/decisions/0012-wrong-keys-per-address.md). An address that is not known is not counted.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # The time at which the address's bucket is full again; the least recently wrong come first.
        self._full_at_s: OrderedDict[str, float] = OrderedDict()

    def check(self, address: str | None) -> None:
        """Raise LimitExceeded when this address may not try another unknown key now."""
        if address is None:
            return
        missing_s = self._full_at_s.get(_neighbours(address), 0.0) - self._clock.now()
        wait_s = missing_s - (MAX_WRONG_KEYS - 1) * REFILL_S
        if wait_s > 0:
            raise LimitExceeded("too many wrong API keys from this address", retry_after_s=wait_s)

    def note(self, address: str | None) -> None:
        """Note that this address has used a wrong key."""
        if address is None:
            return
        key, now = _neighbours(address), self._clock.now()
        full_at_s = max(self._full_at_s.get(key, now), now) + REFILL_S
        # Wrong keys that were looked up at once are not held against the address for longer.
        self._full_at_s[key] = min(full_at_s, now + MAX_WRONG_KEYS * REFILL_S)
        self._full_at_s.move_to_end(key)
        if len(self._full_at_s) > MAX_ADDRESSES:
            self._full_at_s.popitem(last=False)


def _neighbours(address: str) -> str:
    """The address itself or, of IPv6, its network of 64 bits, all of which one subscriber has."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        return str(IPv6Address(int(parsed) >> 64 << 64))
    return address


class Authenticator:
    """Looks keys up, for one gateway."""

    def __init__(
        self,
        quota: GuardedQuota,
        secrets: tuple[bytes, ...],
        clock: Clock,
        tokens: TokenChecker | None = None,
    ) -> None:
        """`secrets`: the server secret, and older ones whose keys are still good. `tokens`: None
        where API keys are the only way in."""
        self._tokens = tokens
        self._quota = quota
        self._secrets = secrets
        self._clock = clock
        self._cache: OrderedDict[bytes, _Cached] = OrderedDict()
        self._lookups: dict[bytes, asyncio.Task[Principal]] = {}
        # Until when a key that quota refused is refused unasked; the longest refused come first.
        self._refused_until_s: OrderedDict[bytes, float] = OrderedDict()
        self._bad_keys = BadKeys(clock)

    @property
    def knows_keys(self) -> bool:
        """True while it has an answer that can be used without quota."""
        now_s = self._clock.now()
        newest_first = reversed(self._cache.values())
        return any(now_s < cached.fetched_s + STALE_S for cached in newest_first)

    async def authenticate(
        self,
        authorization: str | VouchedIdentity | KnownKey | None,
        context: CallContext,
        address: str | None = None,
    ) -> Principal:
        """The principal of a request from `address`, which is None when it is not known. An
        identity as `authorization`, or a known key, was checked before.

        Raises AuthenticationFailed; LimitExceeded after many wrong keys; Unavailable
        `quota_unavailable` when the quota service cannot answer and nothing usable is cached.
        """
        if isinstance(authorization, VouchedIdentity):
            digest_of = partial(identity_digest, identity=authorization.name)
            principal = await self._principal(*self._digests(digest_of), context, address)
            return principal.narrowed(authorization.models)
        if isinstance(authorization, KnownKey):
            first, *older = authorization.digests
            return await self._principal(first, lambda: older, context, address)
        if self._tokens is not None and is_token(authorization):
            return await self._of_token(self._tokens, authorization, context, address)
        api_key = bearer_key(authorization)
        digest_of = partial(key_digest, api_key=api_key)
        return await self._principal(*self._digests(digest_of), context, address)

    async def lasting(self, authorization: str | VouchedIdentity | None) -> LastingKey:
        """An authorization that has just been accepted, in a form that may be kept: it can be used
        here, as long as its key is good, and nowhere else. Raises as `authenticate` does."""
        if isinstance(authorization, VouchedIdentity):
            return authorization
        if self._tokens is not None and is_token(authorization):
            return await self._tokens.identity(_token_in(authorization))
        api_key = bearer_key(authorization)
        return KnownKey(tuple(key_digest(secret, api_key) for secret in self._secrets))

    async def _of_token(
        self,
        tokens: TokenChecker,
        authorization: str | None,
        context: CallContext,
        address: str | None,
    ) -> Principal:
        token = _token_in(authorization)
        if (identity := tokens.checked(token)) is None:
            self._bad_keys.check(address)
            try:
                identity = await tokens.identity(token)
            except AuthenticationFailed:
                self._bad_keys.note(address)
                raise
        digest_of = partial(identity_digest, identity=identity.name)
        principal = await self._principal(*self._digests(digest_of), context, address)
        return principal.narrowed(identity.models)

    def _digests(self, digest_of: Callable[[bytes], bytes]) -> tuple[bytes, OlderDigests]:
        """A key's digest under the server secret, and the way to those under older ones."""
        secret, *older = self._secrets
        return digest_of(secret), lambda: [digest_of(each) for each in older]

    async def _principal(
        self, digest: bytes, older: OlderDigests, context: CallContext, address: str | None
    ) -> Principal:
        """The principal of the key whose digests these are."""
        cached = self._cache.get(digest)
        if cached is not None and self._clock.now() < cached.asked_again_s:
            self._cache.move_to_end(digest)
            return cached.principal
        if cached is None:
            if self._clock.now() < self._refused_until_s.get(digest, 0.0):
                raise AuthenticationFailed("the API key is not valid")
            self._bad_keys.check(address)
        pauses_s, until_s = iter(PAUSES_S), self._clock.now() + WAIT_S
        while True:
            try:
                lookup = self._lookup(digest, older, context, address)
                return await asyncio.shield(lookup)
            except (Unavailable, DeadlineExceeded) as error:
                if cached is not None and self._clock.now() < cached.fetched_s + STALE_S:
                    return cached.principal
                pause_s = next(pauses_s, None)
                if pause_s is None or self._clock.now() + pause_s > until_s:
                    raise Unavailable(
                        "keys cannot be checked now", reason="quota_unavailable", retry_after_s=1
                    ) from error
            await asyncio.sleep(pause_s)

    def _lookup(
        self,
        digest: bytes,
        older: OlderDigests,
        context: CallContext,
        address: str | None,
    ) -> asyncio.Task[Principal]:
        """The one call about this key that runs now. It outlives the request that began it."""
        running = self._lookups.get(digest)
        if running is None:
            running = asyncio.create_task(self._ask([digest, *older()], context, address))
            self._lookups[digest] = running
            running.add_done_callback(lambda task: self._end_lookup(digest, task))
        return running

    def _end_lookup(self, digest: bytes, lookup: asyncio.Task[Principal]) -> None:
        del self._lookups[digest]
        if not lookup.cancelled():
            lookup.exception()  # all requests that waited for it may have left

    async def _ask(
        self, digests: list[bytes], context: CallContext, address: str | None
    ) -> Principal:
        digest = digests[0]
        try:
            answer = await self._find(digests, replace(context, deadline_s=LOOKUP_TIMEOUT_S))
        except AuthenticationFailed:
            self._cache.pop(digest, None)
            self._refuse(digest)
            self._bad_keys.note(address)
            raise
        except (Unavailable, DeadlineExceeded):
            if (cached := self._cache.get(digest)) is not None:
                retried_s = self._clock.now() + RETRY_S
                self._cache[digest] = replace(cached, asked_again_s=retried_s)
            raise
        return self._remember(digest, answer)

    async def _find(
        self, digests: list[bytes], context: CallContext
    ) -> quota_pb2.AuthenticateResponse:
        """What quota knows of a key, whose digests are under the newest secret and older ones."""
        is_known = digests[0] in self._cache
        for digest in digests[:-1]:
            with suppress(AuthenticationFailed):
                return await self._quota.authenticate(digest, context, has_fallback=is_known)
        return await self._quota.authenticate(digests[-1], context, has_fallback=is_known)

    def _refuse(self, digest: bytes) -> None:
        self._refused_until_s[digest] = self._clock.now() + REFILL_S
        self._refused_until_s.move_to_end(digest)
        if len(self._refused_until_s) > MAX_CACHED_KEYS:
            self._refused_until_s.popitem(last=False)

    def _remember(self, digest: bytes, answer: quota_pb2.AuthenticateResponse) -> Principal:
        principal = Principal.of(answer)
        now = self._clock.now()
        fresh_s = min(answer.fresh_for_s or FRESH_S, FRESH_S)
        self._cache[digest] = _Cached(principal, now, now + fresh_s)
        self._cache.move_to_end(digest)
        if len(self._cache) > MAX_CACHED_KEYS:
            self._cache.popitem(last=False)
        return principal

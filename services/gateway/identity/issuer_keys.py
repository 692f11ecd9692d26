"""The public keys of one token issuer (JWKS), as they are now: fetched anew in the background.

A token that names a key which is not known brings one more fetch, at most one in MIN_REFRESH_S: so
an issuer may change its keys at any time, and a flood of wrong tokens is no flood of fetches. While
the issuer cannot be reached the keys that are known stay good.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import jwt
import msgspec

from baton.runtime import logs
from baton.system.clock import Clock
from baton.wire.failures import Unavailable
from services.gateway import instruments

REFRESH_S = 300.0
MIN_REFRESH_S = 10.0
# A request waits no longer for a fetch, which goes on.
MAX_WAIT_S = 1.0
_MAX_KEYS = 100
_DISCOVERY_PATH = "/.well-known/openid-configuration"

# The body behind a URL. Raises OSError, ValueError.
Fetch = Callable[[str], Awaitable[bytes]]

_log = logs.get("issuer")


class IssuerKeys:
    """The keys of one issuer, by their ids. `run` renews them until cancelled."""

    def __init__(self, issuer: str, jwks_url: str, fetch: Fetch, clock: Clock) -> None:
        """Without `jwks_url` the issuer's own configuration says where its keys are."""
        self._issuer = issuer
        self._jwks_url = jwks_url
        self._fetch = fetch
        self._clock = clock
        # None until they were fetched once.
        self._keys: Mapping[str, jwt.PyJWK] | None = None
        self._asked_s = -math.inf
        self._fetching: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Fetch the keys from time to time until cancelled."""
        while True:
            await self._refresh()
            await asyncio.sleep(MIN_REFRESH_S if self._keys is None else REFRESH_S)

    async def key(self, key_id: str | None) -> jwt.PyJWK | None:
        """The key of this id; None when the issuer has none. An issuer with a single key may leave
        the id out. Raises Unavailable when no keys were ever fetched, or the issuer is slow."""
        found = self._known(key_id)
        may_ask = self._clock.now() >= self._asked_s + MIN_REFRESH_S
        is_late = False
        if found is None and (may_ask or self._fetching is not None):
            try:
                async with asyncio.timeout(MAX_WAIT_S):
                    await self._refresh()
            except TimeoutError:
                is_late = True
            found = self._known(key_id)
        if self._keys is None or (is_late and found is None):
            raise Unavailable("the keys of the token's issuer cannot be had now", retry_after_s=1)
        return found

    def _known(self, key_id: str | None) -> jwt.PyJWK | None:
        keys = self._keys or {}
        if key_id is None:
            return next(iter(keys.values())) if len(keys) == 1 else None
        return keys.get(key_id)

    async def _refresh(self) -> None:
        """Fetch the keys; all that wait share one fetch."""
        if self._fetching is None:
            self._asked_s = self._clock.now()
            self._fetching = asyncio.create_task(self._fetch_keys())
            self._fetching.add_done_callback(self._end_fetch)
        await asyncio.shield(self._fetching)

    def _end_fetch(self, fetching: asyncio.Task[None]) -> None:
        self._fetching = None

    async def _fetch_keys(self) -> None:
        try:
            url = self._jwks_url or await self._discovered_url()
            self._keys = _parsed(await self._fetch(url))
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            instruments.GATEWAY_ISSUER_FETCHES.labels("failed").inc()
            _log.warning("issuer_keys_not_fetched", issuer=self._issuer, error=str(error)[:200])
        else:
            instruments.GATEWAY_ISSUER_FETCHES.labels("ok").inc()

    async def _discovered_url(self) -> str:
        found = msgspec.json.decode(await self._fetch(self._issuer.rstrip("/") + _DISCOVERY_PATH))
        if not isinstance(found, dict) or found.get("issuer") != self._issuer:
            raise ValueError("its configuration names another issuer")
        return str(found.get("jwks_uri", ""))


def _parsed(data: bytes) -> dict[str, jwt.PyJWK]:
    """The usable public keys of a JWK set. Raises ValueError."""
    found = msgspec.json.decode(data)
    listed: Any = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(listed, list):
        raise ValueError("not a JWK set")
    keys: dict[str, jwt.PyJWK] = {}
    for number, each in enumerate(listed[:_MAX_KEYS]):
        if not isinstance(each, dict) or each.get("use", "sig") != "sig":
            continue
        if each.get("kty") == "oct":
            continue
        try:
            keys[str(each.get("kid", number))] = jwt.PyJWK(each)
        except jwt.PyJWTError:
            continue
    return keys

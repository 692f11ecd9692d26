"""Idempotency keys that all gateways of one store know: claims of running requests, and answers.

A claim is an object of the store whose gateway says every BEAT_S that it is alive. A gateway that
dies loses its claims, so that a repeated request tries again. While the store is away or full,
each gateway knows its own keys only.
"""

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256

from baton.runtime import logs
from baton.wire.failures import Unavailable
from services.gateway.stored.store import GONE, TOO_LARGE, Fields, Store

WINDOW_S = 3600.0
MAX_BYTES_OF_TENANT = 8 * 1024 * 1024
BEAT_S = 5.0
RUNNING = "in_progress"
_log = logs.get("idempotency")


@dataclass(frozen=True, slots=True)
class SharedAnswer:
    """The first request with a key, as its gateway told it. `body`: None for an answer that is not
    kept, or not there yet."""

    digest: bytes
    request_id: str
    is_running: bool
    body: bytes | None


class Claim:
    """A key that is this request's, until it is ended."""

    def __init__(self, store: Store, tenant: str, name: str, first: Fields) -> None:
        self._store = store
        self._tenant = tenant
        self._name = name
        self._first = first
        self._beats = asyncio.create_task(self._beat())

    async def keep(self, body: bytes | None) -> None:
        """Keep the answer, or only the fact that there was one, and end the claim. Another request
        may have the key by now, if the store did not hear of this one: so it is named again."""
        fields: Fields = {**self._first, "status": "completed"}
        is_told = False
        if body is not None and len(body) <= self._store.max_object_bytes:
            is_told = await self._told({**fields, "body": body}) != TOO_LARGE
        if not is_told:
            await self._told(fields)

    async def give_up(self) -> None:
        """Forget the key, unless it is another request's by now, and end the claim."""
        self._beats.cancel()
        try:
            fields: Fields = {**self._first, "status": RUNNING}
            await self._store.delete(self._tenant, self._name, fields)
        except Unavailable:
            _log.info("claim_left_behind")

    async def _told(self, fields: Fields) -> str:
        self._beats.cancel()
        try:
            return await self._store.write(self._tenant, self._name, fields, "open")
        except Unavailable:
            _log.info("answer_not_shared")
            return ""

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            try:
                told = await self._store.go_on(
                    self._tenant, self._name, self._first, condition="same"
                )
                if told == GONE:
                    return
            except Unavailable:
                continue


class SharedAnswers:
    """The keys of all tenants in one store, whose answers are bounded for themselves."""

    def __init__(self, store: Store) -> None:
        limits = replace(store.limits, ttl_s=WINDOW_S, max_bytes_of_tenant=MAX_BYTES_OF_TENANT)
        self._store = Store(store.commands, limits, store.clock, "keyed")

    async def begin(
        self, tenant: str, key: str, digest: bytes, request_id: str
    ) -> Claim | SharedAnswer | None:
        """Claim a key. Returns what is known of its first request where there was one, and None
        where that cannot be told or nothing is kept of this tenant. A claim of which the store does
        not say that it took it may be there, and is ended like any other."""
        if not self._store.keeps(tenant):
            return None
        name = f"key_{sha256(key.encode()).hexdigest()}"
        first: Fields = {"digest": digest, "request_id": request_id}
        fields: Fields = {**first, "status": RUNNING}
        claim = partial(Claim, self._store, tenant, name, first)
        try:
            refused = await self._store.go_on(tenant, name, fields, condition="new")
        except Unavailable:
            _log.info("keys_not_shared")
            return claim()
        except asyncio.CancelledError:
            await claim().give_up()
            raise
        known = await self._known(tenant, name, digest) if refused else None
        # The store was asked again, after a reply that was lost.
        is_own = known is not None and known.request_id == request_id
        return known if refused and not is_own else claim()

    async def _known(self, tenant: str, name: str, digest: bytes) -> SharedAnswer | None:
        """What is known of a key that is claimed; None where the store cannot tell."""
        try:
            found = await self._store.read(tenant, name, "digest", "request_id", "status", "body")
        except Unavailable:
            _log.info("keys_not_shared")
            return None
        if found[0] is None or found[1] is None:
            # It was given up between the two.
            return SharedAnswer(digest, "", is_running=True, body=None)
        is_running = found[2] == RUNNING.encode()
        return SharedAnswer(found[0], found[1].decode(), is_running, found[3])

"""Requests with an Idempotency-Key: a repeated one gets the first one's answer, and is not billed.

Keys are a tenant's own. Each gateway knows those that came to it, and those of the others where the
fleet has a store. A whole answer is kept for WINDOW_S within bounds: a tenant's oldest answers make
room for its new ones, and other tenants' never do. A stream is not kept, only that there was one;
of one in the background, that it was begun. What failed is forgotten: a repeated request tries
again.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256

from baton.system.clock import Clock
from baton.wire.failures import BatonError, InvalidRequest
from services.gateway.http.response import HttpResponse
from services.gateway.request.incoming import IncomingRequest, Repeated, Sink
from services.gateway.stored.shared_answers import (
    MAX_BYTES_OF_TENANT,
    WINDOW_S,
    Claim,
    SharedAnswer,
    SharedAnswers,
)

MAX_BYTES = 64 * 1024 * 1024
RETRY_AFTER_S = 1.0
# Of an entry, besides its answer.
_ENTRY_BYTES = 512

Run = Callable[[IncomingRequest, Sink], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """The answer to the first request with a key. `body`: None for one that is not kept."""

    request_id: str
    digest: bytes
    body: bytes | None
    until_s: float

    @property
    def num_bytes(self) -> int:
        return _ENTRY_BYTES + len(self.body or b"")


class KeptAnswers:
    """The answers that one gateway keeps, and the keys of the requests that run."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._running: dict[tuple[str, str], bytes] = {}
        # By tenant and key; the oldest come first.
        self._kept: dict[str, OrderedDict[str, KeptAnswer]] = {}
        self._num_bytes: dict[str, int] = {}
        # Of all tenants.
        self.num_bytes = 0

    def begin(self, tenant: str, key: str, digest: bytes) -> KeptAnswer | None:
        """The answer that this request had before; without one it begins now. Raises InvalidRequest
        when the key is in use, is another request's, or its answer was not kept."""
        running = self._running.get((tenant, key))
        own = self._kept.get(tenant)
        kept = None if own is None else own.get(key)
        if kept is not None and kept.until_s <= self._clock.now():
            self._drop(tenant, key)
            kept = None
        first = running or (kept and kept.digest)
        if first is not None and first != digest:
            raise _of_another()
        if running is not None:
            raise _is_running()
        if kept is None:
            self._running[tenant, key] = digest
            return None
        return _whole(kept)

    def end(self, tenant: str, key: str) -> None:
        """Note that the running request of a key has ended."""
        del self._running[tenant, key]

    def keep(self, tenant: str, key: str, answer: KeptAnswer) -> None:
        """Keep an answer, as far as there is room."""
        if answer.num_bytes > MAX_BYTES_OF_TENANT:
            answer = replace(answer, body=None)
        self._drop_expired(tenant)
        own = self._kept.setdefault(tenant, OrderedDict())
        while own and not self._has_room(tenant, answer):
            self._drop(tenant, next(iter(own)))
        if not self._has_room(tenant, answer):
            for other in list(self._kept):
                self._drop_expired(other)
        if not self._has_room(tenant, answer):
            answer = replace(answer, body=None)
        self._kept.setdefault(tenant, OrderedDict())[key] = answer
        self._num_bytes[tenant] = self._num_bytes.get(tenant, 0) + answer.num_bytes
        self.num_bytes += answer.num_bytes

    def _has_room(self, tenant: str, answer: KeptAnswer) -> bool:
        num_own = self._num_bytes.get(tenant, 0) + answer.num_bytes
        return num_own <= MAX_BYTES_OF_TENANT and self.num_bytes + answer.num_bytes <= MAX_BYTES

    def _drop_expired(self, tenant: str) -> None:
        now_s = self._clock.now()
        while own := self._kept.get(tenant):
            key, oldest = next(iter(own.items()))
            if oldest.until_s > now_s:
                return
            self._drop(tenant, key)

    def _drop(self, tenant: str, key: str) -> None:
        num_bytes = self._kept[tenant].pop(key).num_bytes
        self._num_bytes[tenant] -= num_bytes
        self.num_bytes -= num_bytes
        if not self._kept[tenant]:
            del self._kept[tenant], self._num_bytes[tenant]


@dataclass(frozen=True, slots=True)
class KeyedAnswers:
    """What a gateway knows of keys. `shared`: None in a fleet without a store."""

    own: KeptAnswers
    shared: SharedAnswers | None
    clock: Clock


class KeyedRequest:
    """One request that came with a key. `run` it once."""

    def __init__(self, key: str, answers: KeyedAnswers) -> None:
        self._key = key
        self._answers = answers
        self._tenant = ""
        self._digest = b""
        self._claim: Claim | None = None
        self._earlier: KeptAnswer | None = None
        self._body: bytes | None = None

    async def run(
        self, run: Run, response: HttpResponse, incoming: IncomingRequest, sink: Sink
    ) -> None:
        """Run the request, or write the answer that it had before. Raises BatonError."""
        response.on_whole = self._take
        is_answered = False
        try:
            await run(replace(incoming, on_body=partial(self._check, incoming)), sink)
            is_answered = True
        except Repeated:
            await self._repeat(response)
        finally:
            is_done = is_answered or self._body is not None or response.outlives_client
            await self._end(incoming.request_id, is_done=is_done)

    async def _check(self, incoming: IncomingRequest, tenant: str, body: bytes) -> None:
        self._digest = sha256(incoming.endpoint.name.encode() + b"\0" + body).digest()
        self._earlier = self._answers.own.begin(tenant, self._key, self._digest)
        if self._earlier is None:
            self._tenant = tenant
            self._earlier = await self._claimed(incoming.request_id)
        if self._earlier is not None:
            raise Repeated

    async def _claimed(self, request_id: str) -> KeptAnswer | None:
        """The answer that another gateway keeps. Raises InvalidRequest as `KeptAnswers.begin`."""
        if self._answers.shared is None:
            return None
        begun = await self._answers.shared.begin(self._tenant, self._key, self._digest, request_id)
        if isinstance(begun, SharedAnswer):
            if begun.digest != self._digest:
                raise _of_another()
            if begun.is_running:
                raise _is_running()
            kept = KeptAnswer(begun.request_id, begun.digest, begun.body, self._answers.clock.now())
            return _whole(kept)
        self._claim = begun
        return None

    def _take(self, body: bytes) -> None:
        self._body = body

    async def _end(self, request_id: str, *, is_done: bool) -> None:
        if not self._tenant:
            return
        self._answers.own.end(self._tenant, self._key)
        if is_done and self._earlier is None:
            until_s = self._answers.clock.now() + WINDOW_S
            answer = KeptAnswer(request_id, self._digest, self._body, until_s)
            self._answers.own.keep(self._tenant, self._key, answer)
        if self._claim is not None:
            await (self._claim.keep(self._body) if is_done else self._claim.give_up())

    async def _repeat(self, response: HttpResponse) -> None:
        assert self._earlier is not None, "a repeated request was answered before"
        headers = {"idempotent-replayed": "true", "original-request": self._earlier.request_id}
        response.on_whole = None
        await response.whole(200, [self._earlier.body or b""], headers)


def _whole(kept: KeptAnswer) -> KeptAnswer:
    """Raises InvalidRequest where the answer was not kept."""
    if kept.body is None:
        raise _refusal(f"{kept.request_id} was answered, and not kept", "answer_not_kept")
    return kept


def _of_another() -> BatonError:
    return _refusal("was used for another request", "idempotency_key_reused")


def _is_running() -> BatonError:
    return _refusal("its request is running", "idempotency_key_in_use", RETRY_AFTER_S)


def _refusal(problem: str, reason: str, retry_after_s: float = 0.0) -> BatonError:
    message = f"Idempotency-Key: {problem}"
    return InvalidRequest(
        message, reason=reason, param="Idempotency-Key", retry_after_s=retry_after_s
    )

"""The ledger: all decisions of the quota service on keys, limits and leases, by atomic scripts.

A reservation is a lease: reserve, renew (and extend), settle; a lease that is not renewed lapses.
The protocol and its states are in README.md and in lua/leases.lua; random schedules against a real
server check each step under crashes. Knows neither gRPC nor Redis: it gets a store, a registry,
and, in tests and simulations, a clock.
"""

import contextlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from baton.wire import failures
from baton.wire.key_limits import tenant_root
from baton.wire.key_registry import GATEWAYS_KEY
from baton.wire.v1 import quota_pb2
from services.quota import instruments
from services.quota.agenda import Agenda
from services.quota.outcomes import (
    RenewOutcome,
    Reserved,
    ReserveOutcome,
    SettleOutcome,
    exceeds_limit,
    refusal,
    reserved,
    spent_limit,
)
from services.quota.prices import Prices
from services.quota.registry import Registry
from services.quota.store import Argument, Store, StoreRefused
from services.quota.tenant_meter import TenantMeter

MAX_REQUEST_TOKENS = 2**40
# One script call blocks the store for as long as it runs; this many leases take 1 to 3 ms.
_LEASES_PER_CALL = 32
_MAX_ID_CHARS = 128
_REAPED_PER_CALL = 64
# A gateway tells its name every 5 s.
GATEWAY_LIVES_MS = 15_000
# What lua/renew.lua replies for each lease.
_VALUES_OF_RENEWAL = 6
_PART = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
_NAME = re.compile(_PART)
_TENANT = re.compile(rf"{_PART}(/{_PART})?")
_PRINTABLE = re.compile(rf"[\x21-\x7e]{{1,{_MAX_ID_CHARS}}}")

_RESERVATIONS = {each: instruments.QUOTA_RESERVATIONS.labels(each) for each in ReserveOutcome}
_SETTLES = {each: instruments.QUOTA_SETTLES.labels(each) for each in SettleOutcome}
_STATES = {
    RenewOutcome.HELD: quota_pb2.LeaseState.STATE_HELD,
    RenewOutcome.SHORT: quota_pb2.LeaseState.STATE_SHORT,
    RenewOutcome.REFUSED: quota_pb2.LeaseState.STATE_REFUSED,
    RenewOutcome.LOST: quota_pb2.LeaseState.STATE_LOST,
    RenewOutcome.UNKNOWN_KEY: quota_pb2.LeaseState.STATE_LOST,
}


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """The life of a lease without renewal, and how long a finished request id is remembered."""

    lease_s: float = 30.0
    settled_kept_s: float = 86_400.0


def store_time_ms() -> int:
    """Return 0, which lets each script read the store's own time."""
    return 0


class Ledger:
    """The limits, leases and usage records of all tenants.

    Methods raise Unavailable when the store is away; `authenticate` only for keys that no file has.
    `on_settled` is called with a tenant whose usage records may wait to be archived, `on_workers`
    with what gateways tell of workers. Without `prices` everything is free. `clock_ms` replaces the
    store's time in tests and simulations only.
    """

    def __init__(
        self,
        store: Store,
        registry: Registry,
        terms: LeaseTerms | None = None,
        *,
        on_settled: Callable[[str], None] = lambda tenant: None,
        meter: TenantMeter | None = None,
        prices: Prices | None = None,
        on_workers: Callable[[Iterable[quota_pb2.WorkerTotals]], None] = lambda workers: None,
        clock_ms: Callable[[], int] = store_time_ms,
    ) -> None:
        self._on_workers = on_workers
        self._store = store
        self._agenda = Agenda(store)
        self._registry = registry
        self._terms = terms or LeaseTerms()
        self._on_settled = on_settled
        self._meter = meter or TenantMeter(max_tenants=0)
        self._prices = prices or Prices()
        self._clock_ms = clock_ms

    async def authenticate(
        self, request: quota_pb2.AuthenticateRequest
    ) -> quota_pb2.AuthenticateResponse:
        """Return the principal of a key digest. Raises AuthenticationFailed."""
        return await self._registry.authenticate(request.key_digest)

    async def reserve(self, request: quota_pb2.ReserveRequest) -> quota_pb2.ReserveResponse:
        """Take a lease on prompt + output tokens, one request and one of the concurrent leases, of
        the key, its tenant and its organisation.

        A repeat returns the same grant. An estimate of the prompt may be held for fewer tokens than
        it says. The exact amounts replace it later; a refusal of them leaves the lease as it is.

        Raises LimitExceeded (with limit state and the time to wait), InvalidRequest when the
        request can never fit or its id was used before, AuthenticationFailed for a revoked key.
        """
        _check_identity(request.tenant, request.key_id, request.request_id)
        num_tokens = request.num_prompt_tokens + request.num_output_tokens
        if num_tokens > MAX_REQUEST_TOKENS:
            raise exceeds_limit(str(num_tokens), MAX_REQUEST_TOKENS)
        answer = await self._reserve(request)
        if answer.outcome is ReserveOutcome.UNKNOWN_KEY:
            await self._registry.refresh()
            answer = await self._reserve(request)
        if not (request.replaces_estimate and answer.outcome is ReserveOutcome.GRANTED):
            _RESERVATIONS[answer.outcome].inc()
            self._meter.reserved(request.tenant, answer.outcome)
        if answer.outcome is not ReserveOutcome.GRANTED:
            raise refusal(answer, request)
        return quota_pb2.ReserveResponse(
            granted_output_tokens=answer.num_granted,
            expires_in_ms=answer.ms,
            limits=answer.limits,
            num_prompt_tokens=answer.num_prompt,
            price=self._prices.token_price(request.model),
        )

    async def renew(self, request: quota_pb2.RenewRequest) -> quota_pb2.RenewResponse:
        """Renew all leases of the message, and extend those that ask for it; answers in its order.

        An extension is granted in full or not at all. A lapsed lease is held again if there is
        room, else lost: its holder stops producing. A lease that the store lost is held again if
        the renewal names its key and amounts. The leases of a tenant with corrupt data get no
        state, and stay as they are.
        """
        self._on_workers(request.workers)
        states = [quota_pb2.LeaseState(request_id=lease.request_id) for lease in request.leases]
        of_tenant: dict[str, list[int]] = defaultdict(list)
        for index, lease in enumerate(request.leases):
            if _TENANT.fullmatch(lease.tenant) and _PRINTABLE.fullmatch(lease.request_id):
                of_tenant[lease.tenant].append(index)
            else:
                states[index].state = quota_pb2.LeaseState.STATE_LOST
        for tenant, indexes in of_tenant.items():
            for start in range(0, len(indexes), _LEASES_PER_CALL):
                part = indexes[start : start + _LEASES_PER_CALL]
                renewals = [request.leases[index] for index in part]
                with contextlib.suppress(StoreRefused):
                    renewed = await self._renew_part(tenant, renewals)
                    for index, state in zip(part, renewed, strict=True):
                        states[index] = state
        return quota_pb2.RenewResponse(
            leases=states, num_gateways=await self._count_gateways(request.gateway_id)
        )

    async def settle(self, request: quota_pb2.SettleRequest) -> quota_pb2.SettleResponse:
        """Charge the tokens that a request really used, once; the record waits for the archiver."""
        usage = request.usage
        _check_identity(usage.tenant, usage.key_id, usage.request_id)
        if usage.num_prompt_tokens + usage.num_output_tokens > MAX_REQUEST_TOKENS:
            raise failures.InvalidRequest("token counts of the usage record are impossible")
        outcome = await self._settle(usage, key_must_be_known=True)
        if outcome is SettleOutcome.UNKNOWN_KEY:
            await self._registry.refresh()
            outcome = await self._settle(usage, key_must_be_known=False)
        _SETTLES[outcome].inc()
        is_repeated = outcome is SettleOutcome.REPEATED
        if not is_repeated:
            self._meter.settled(usage)
        self._on_settled(usage.tenant)
        return quota_pb2.SettleResponse(repeated_settle=is_repeated)

    async def reap(self) -> int:
        """Lapse the expired leases of all tenants on the agenda; returns their number."""
        num_reaped = 0
        while due := await self._agenda.take(self._every_script()):
            next_ms: dict[str, int] = {}
            try:
                while due:
                    with contextlib.suppress(StoreRefused):
                        num, next_ms[due[-1]] = await self._reap_tenant(due[-1])
                        num_reaped += num
                    due.pop()
                await self._agenda.put_back({name: at for name, at in next_ms.items() if at})
            except BaseException:
                self._agenda.new.update(due, next_ms)
                raise
        return num_reaped

    async def look_at_all(self) -> None:
        """Let the next `reap` look at every tenant, and the archiver as well."""
        for tenant in await self._agenda.add_all():
            self._on_settled(tenant)

    async def _reap_tenant(self, tenant: str) -> tuple[int, int]:
        """Returns the number of lapsed leases, and when the next one expires; 0 = there is none."""
        num_reaped, last, next_ms = 0, _REAPED_PER_CALL, 0
        while last >= _REAPED_PER_CALL:
            last, next_ms = await self._run("reap", tenant, ())
            num_reaped += last
        if num_reaped:
            instruments.QUOTA_LAPSED_LEASES.inc(num_reaped)
        # Another call of the tenant may have lapsed leases just before, without telling.
        self._on_settled(tenant)
        return num_reaped, next_ms

    async def _count_gateways(self, gateway_id: str) -> int:
        """The gateways that live; 0 when this message does not say which one it comes from."""
        if not _PRINTABLE.fullmatch(gateway_id):
            return 0
        with contextlib.suppress(StoreRefused):
            arguments = (*self._every_script(), gateway_id, GATEWAY_LIVES_MS)
            return int(await self._store.run_script("gateways", GATEWAYS_KEY, arguments))
        return 0

    def _every_script(self) -> tuple[int, int, int]:
        terms = self._terms
        return (
            self._clock_ms(),
            round(terms.lease_s * 1000),
            round(terms.settled_kept_s * 1000),
        )

    async def _run(self, name: str, tenant: str, arguments: Iterable[Argument]) -> Any:
        root = tenant_root(tenant)
        return await self._store.run_script(name, root, (*self._every_script(), *arguments))

    async def _open_leases(self, name: str, tenant: str, arguments: Iterable[Argument]) -> Any:
        """Run a script after which the tenant may hold leases: also if its answer was lost."""
        try:
            return await self._run(name, tenant, arguments)
        finally:
            self._agenda.new.add(tenant)

    async def _reserve(self, request: quota_pb2.ReserveRequest) -> Reserved:
        arguments = (
            request.request_id, _digest(request.request_id), request.key_id, request.model,
            self._prices.text_of(request.model), request.num_prompt_tokens,
            request.num_output_tokens, request.min_output_tokens, request.min_prompt_tokens,
            int(request.replaces_estimate),
        )  # fmt: skip
        return reserved(await self._open_leases("reserve", request.tenant, arguments), request)

    async def _settle(
        self, usage: quota_pb2.UsageRecord, *, key_must_be_known: bool
    ) -> SettleOutcome:
        arguments: tuple[Argument, ...] = (
            usage.request_id, _digest(usage.request_id), usage.key_id, usage.model,
            self._prices.text_of(usage.model), usage.num_prompt_tokens, usage.num_cached_tokens,
            usage.num_output_tokens, usage.SerializeToString(), int(key_must_be_known),
        )  # fmt: skip
        return SettleOutcome((await self._run("settle", usage.tenant, arguments)).decode())

    async def _renew_part(
        self, tenant: str, leases: Sequence[quota_pb2.LeaseRenewal]
    ) -> list[quota_pb2.LeaseState]:
        arguments = [
            argument
            for lease in leases
            for argument in _renewal_arguments(lease, self._prices.text_of(lease.model))
        ]
        reply = await self._open_leases("renew", tenant, arguments)
        if RenewOutcome.UNKNOWN_KEY.encode() in reply[::_VALUES_OF_RENEWAL]:
            await self._registry.refresh()
            reply = await self._open_leases("renew", tenant, arguments)
        answers = [
            reply[start : start + _VALUES_OF_RENEWAL]
            for start in range(0, len(reply), _VALUES_OF_RENEWAL)
        ]
        return [_lease_state(lease, *answer) for lease, answer in zip(leases, answers, strict=True)]


def _lease_state(lease: quota_pb2.LeaseRenewal, state: bytes, *answer: Any) -> quota_pb2.LeaseState:
    granted, expires_in_ms, retry_after_ms, account, kind = answer
    outcome = RenewOutcome(state.decode())
    instruments.QUOTA_RENEWALS.labels(outcome).inc()
    return quota_pb2.LeaseState(
        request_id=lease.request_id,
        state=_STATES[outcome],
        granted_output_tokens=granted,
        expires_in_ms=expires_in_ms,
        retry_after_ms=retry_after_ms,
        spent_limit=spent_limit(account, kind, lease.model),
    )


def _check_identity(tenant: str, key_id: str, request_id: str) -> None:
    """Refuse names that must not become parts of Redis keys: with braces or spaces, or too long."""
    for param, value, pattern in (
        ("tenant", tenant, _TENANT),
        ("key_id", key_id, _NAME),
        ("request_id", request_id, _PRINTABLE),
    ):
        if not pattern.fullmatch(value):
            raise failures.InvalidRequest(
                f"{param} {failures.quoted(value)} is malformed", param=param
            )


def _digest(request_id: str) -> bytes:
    """What the store remembers of a settled request.

    Redis keeps a string of 14 bytes in 16. Two of a tenant's requests share a digest with a
    probability of 2^-112.
    """
    return blake2b(request_id.encode(), digest_size=14).digest()


def _renewal_arguments(lease: quota_pb2.LeaseRenewal, price: str) -> Sequence[Argument]:
    return (
        lease.request_id,
        _digest(lease.request_id),
        min(lease.used_output_tokens, MAX_REQUEST_TOKENS),
        min(lease.produced_output_tokens, MAX_REQUEST_TOKENS),
        min(lease.wanted_output_tokens, MAX_REQUEST_TOKENS),
        lease.key_id if _NAME.fullmatch(lease.key_id) else "",
        lease.model,
        price,
        lease.num_prompt_tokens,
        min(lease.granted_output_tokens, MAX_REQUEST_TOKENS),
    )

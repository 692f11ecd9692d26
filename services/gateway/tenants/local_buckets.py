"""The limits of soft tenants while quota is away: buckets of this gateway's own.

Every gateway has its share: the limits of the key, its tenant and its organisation, divided by the
gateways that quota heard from last. Reservations, extensions and concurrent requests count at all
these levels.
A bucket starts at its share of the last remaining count that quota reported. A request that is
larger than the share goes on when the bucket is full, into debt. A budget of tokens gives a
BUDGET_PART, divided likewise, until quota is back; one of money is not checked. For how long a key
works at all is up to its stale answer (tenants/auth.py). Usage is settled later.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from baton.system.clock import Clock
from baton.wire.failures import LimitExceeded, Unavailable
from baton.wire.v1 import failure_pb2, quota_pb2
from services.gateway.tenants.lease import extension_share
from services.gateway.tenants.principal import AccountLimits, Principal

MAX_ACCOUNTS = 10_000
BUDGET_PART = 0.25
_MINUTE_S = 60.0
# It is not known when one of the concurrent requests ends.
_SLOT_RETRY_S = 1.0


@dataclass(slots=True)
class _Bucket:
    """A token bucket that refills to `limit` within a minute. Limit 0 = unlimited."""

    limit: int
    level: float
    filled_s: float

    def refill(self, now_s: float) -> None:
        gained = (now_s - self.filled_s) * self.limit / _MINUTE_S
        self.level = min(float(self.limit), self.level + gained)
        self.filled_s = now_s

    def wait_s(self, amount: int) -> float:
        """The seconds until the bucket has room for `amount`; 0 = now."""
        needed = min(amount, self.limit)
        if not self.limit or self.level >= needed:
            return 0.0
        return (needed - self.level) * _MINUTE_S / self.limit


@dataclass(slots=True)
class _Account:
    """The buckets of one account, and the tokens that may still be granted of its budget."""

    limits: AccountLimits
    requests: _Bucket
    tokens: _Bucket
    budget_left: float

    def refill(self, now_s: float) -> None:
        self.requests.refill(now_s)
        self.tokens.refill(now_s)

    def wait_s(self, num_requests: int, num_tokens: int) -> float:
        """The seconds until there is room for so many requests and tokens; 0 = now."""
        return max(self.requests.wait_s(num_requests), self.tokens.wait_s(num_tokens))

    def take(self, num_requests: int, num_tokens: int) -> None:
        self.requests.level -= num_requests
        self.tokens.level -= num_tokens
        self.budget_left -= num_tokens


class LocalBuckets:
    """The buckets of each account, for requests and tokens per minute, as this gateway knows them.

    `num_gateways`: those among which the limits are divided.
    """

    def __init__(self, clock: Clock) -> None:
        self.num_gateways = 1
        self._clock = clock
        self._last_limits: OrderedDict[str, failure_pb2.LimitState] = OrderedDict()
        # The least recently used come first.
        self._accounts: OrderedDict[str, _Account] = OrderedDict()

    def quota_answers(self, principal: Principal, limits: failure_pb2.LimitState) -> None:
        """Note the remaining counts that quota reported, with which an outage would start."""
        for bound in principal.limits:
            self._accounts.pop(bound.name, None)
        self._last_limits[principal.key_id] = limits
        self._last_limits.move_to_end(principal.key_id)
        if len(self._last_limits) > MAX_ACCOUNTS:
            self._last_limits.popitem(last=False)

    def reserve(
        self,
        principal: Principal,
        request: quota_pb2.ReserveRequest,
        num_open: Callable[[str], int] = lambda name: 0,
    ) -> quota_pb2.ReserveResponse:
        """Reserve from the local buckets, as Quota.Reserve does. `num_open`: the requests under an
        account that this gateway serves already.

        Raises Unavailable for hard budgets and a budget whose part is spent, and LimitExceeded.
        """
        bounds = principal.limits_for(request.model)
        num_output = _fitting(bounds, request)
        num_tokens = request.num_prompt_tokens + num_output
        accounts = self._with_budget(bounds, num_tokens)
        wait_s, scarcest = _longest_wait(accounts, 1, num_tokens)
        if any(self._is_full(bound, num_open(bound.name)) for bound in bounds):
            wait_s = max(wait_s, _SLOT_RETRY_S)
        limits = _state(scarcest) if scarcest else failure_pb2.LimitState()
        if wait_s:
            raise LimitExceeded(
                "over the limits while quota is away", retry_after_s=wait_s, limits=limits
            )
        for account in accounts:
            account.take(1, num_tokens)
        limits = _state(scarcest) if scarcest else limits
        return quota_pb2.ReserveResponse(granted_output_tokens=num_output, limits=limits)

    def extend(self, bounds: Sequence[AccountLimits], num_tokens: int) -> tuple[float, str]:
        """Take tokens of all accounts of an answer that runs; or take none and return the seconds
        to wait, and the scope that has no room. Raises Unavailable as `reserve` does."""
        accounts = self._with_budget(bounds, num_tokens)
        wait_s, scarcest = _longest_wait(accounts, 0, num_tokens)
        if wait_s and scarcest:
            return wait_s, scarcest.limits.scope
        for account in accounts:
            account.take(0, num_tokens)
        return 0.0, ""

    def _with_budget(self, bounds: Sequence[AccountLimits], num_tokens: int) -> list[_Account]:
        """All these accounts. Raises Unavailable when a budget is hard, or its part too small."""
        accounts = [self._of(bound) for bound in bounds]
        if any(each.limits.hard_budget or each.budget_left < num_tokens for each in accounts):
            raise _no_budget()
        return accounts

    def _is_full(self, bound: AccountLimits, num_open: int) -> bool:
        return bool(bound.concurrency) and num_open >= self._share(bound.concurrency)

    def _of(self, bound: AccountLimits) -> _Account:
        account = self._accounts.get(bound.name)
        if account is None:
            account = self._accounts[bound.name] = self._opened(bound)
            if len(self._accounts) > MAX_ACCOUNTS:
                self._accounts.popitem(last=False)
        self._accounts.move_to_end(bound.name)
        account.refill(self._clock.now())
        return account

    def _opened(self, bound: AccountLimits) -> _Account:
        """An account as an outage begins."""
        last = self._last_limits.get(bound.name)
        requests, tokens = bound.requests_per_minute, bound.tokens_per_minute
        part = bound.budget_tokens * BUDGET_PART / self.num_gateways
        return _Account(
            bound,
            self._bucket(requests, last.remaining_requests if last else requests),
            self._bucket(tokens, last.remaining_tokens if last else tokens),
            part if bound.budget_tokens else math.inf,
        )

    def _bucket(self, limit: int, remaining: int) -> _Bucket:
        share = self._share(limit) if limit else 0
        return _Bucket(share, min(remaining / self.num_gateways, share), self._clock.now())

    def _share(self, limit: int) -> int:
        return max(limit // self.num_gateways, 1)


def _longest_wait(
    accounts: Sequence[_Account], num_requests: int, num_tokens: int
) -> tuple[float, _Account | None]:
    """The longest wait for room, and its account; None without any accounts."""
    scarcest = max(accounts, key=lambda each: each.wait_s(num_requests, num_tokens), default=None)
    return (scarcest.wait_s(num_requests, num_tokens) if scarcest else 0.0), scarcest


def _fitting(bounds: Sequence[AccountLimits], request: quota_pb2.ReserveRequest) -> int:
    """The output tokens to grant: those that were asked for, or, as quota does it, a default
    maximum cut to what can ever fit."""
    if not request.min_output_tokens:
        return request.num_output_tokens
    rooms = [request.num_output_tokens]
    for bound in bounds:
        rooms += [
            limit - request.num_prompt_tokens
            for limit in (bound.tokens_per_minute, bound.budget_tokens)
            if limit
        ]
        rooms.append(extension_share(bound.tokens_per_minute))
    return max(request.min_output_tokens, min(rooms))


def _no_budget() -> Unavailable:
    return Unavailable(
        "the budget cannot be checked now", reason="quota_unavailable", retry_after_s=1
    )


def _state(account: _Account) -> failure_pb2.LimitState:
    requests, tokens = account.requests, account.tokens
    return failure_pb2.LimitState(
        limit_requests=requests.limit,
        remaining_requests=max(0, int(requests.level)),
        reset_requests_ms=round(requests.wait_s(requests.limit) * 1000),
        limit_tokens=tokens.limit,
        remaining_tokens=max(0, int(tokens.level)),
        reset_tokens_ms=round(tokens.wait_s(tokens.limit) * 1000),
        requests_scope=account.limits.scope,
        tokens_scope=account.limits.scope,
    )

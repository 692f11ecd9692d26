"""The limits of soft tenants while quota is away: buckets of this gateway's own.

Every gateway has its share: the limits of the key, its tenant and its organisation, divided by the
gateways that quota heard from last.
A bucket starts at its share of the last remaining count that quota reported. A request that is
larger than the share goes on when the bucket is full, into debt. A budget of tokens gives a
BUDGET_PART, divided likewise, until quota is back; one of money is not checked. For how long a key
works at all is up to its stale answer (tenants/auth.py). Usage is settled later.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from baton.system.clock import Clock
from baton.wire.failures import LimitExceeded, Unavailable
from baton.wire.v1 import failure_pb2, quota_pb2
from services.gateway.tenants.auth import Principal, SharedLimits
from services.gateway.tenants.lease import extension_share

MAX_KEYS = 10_000
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
    """One key's buckets, and the tokens that it was granted since quota is away."""

    requests: _Bucket
    tokens: _Bucket
    num_granted: int = 0

    def refill(self, now_s: float) -> None:
        self.requests.refill(now_s)
        self.tokens.refill(now_s)

    def wait_s(self, num_tokens: int) -> float:
        """The seconds until there is room for one request of so many tokens; 0 = now."""
        return max(self.requests.wait_s(1), self.tokens.wait_s(num_tokens))

    def take(self, num_requests: int, num_tokens: int) -> None:
        self.requests.level -= num_requests
        self.tokens.level -= num_tokens
        self.num_granted += num_tokens


class LocalBuckets:
    """The buckets of each key, for requests and tokens per minute, as far as this gateway knows.

    `num_gateways`: those among which the limits are divided.
    """

    def __init__(self, clock: Clock) -> None:
        self.num_gateways = 1
        self._clock = clock
        self._last_limits: OrderedDict[str, failure_pb2.LimitState] = OrderedDict()
        self._accounts: OrderedDict[str, _Account] = OrderedDict()

    def quota_answers(self, principal: Principal, limits: failure_pb2.LimitState) -> None:
        """Note the remaining counts that quota reported, with which an outage would start."""
        self._accounts.pop(principal.key_id, None)
        for shared in principal.shared:
            self._accounts.pop(_name(shared), None)
        self._last_limits[principal.key_id] = limits
        self._last_limits.move_to_end(principal.key_id)
        if len(self._last_limits) > MAX_KEYS:
            self._last_limits.popitem(last=False)

    def reserve(
        self, principal: Principal, request: quota_pb2.ReserveRequest, num_open: int = 0
    ) -> quota_pb2.ReserveResponse:
        """Reserve from the local buckets, as Quota.Reserve does. `num_open`: the key's requests
        that this gateway serves already.

        Raises Unavailable for hard budgets and a budget whose part is spent, and LimitExceeded.
        """
        if principal.hard_budget:
            raise _no_budget()
        bounds = principal.limits_for(request.model)
        num_output = _fitting(bounds, request)
        num_tokens = request.num_prompt_tokens + num_output
        accounts = [
            self._of(_name(bound), bound.requests_per_minute, bound.tokens_per_minute)
            for bound in bounds
        ]
        for bound, account in zip(bounds, accounts, strict=True):
            part = bound.budget_tokens * BUDGET_PART / self.num_gateways
            if bound.budget_tokens and account.num_granted + num_tokens > part:
                raise _no_budget()
        scarcest = max(accounts, key=lambda account: account.wait_s(num_tokens))
        wait_s = scarcest.wait_s(num_tokens)
        if principal.concurrency and num_open >= max(principal.concurrency // self.num_gateways, 1):
            wait_s = max(wait_s, _SLOT_RETRY_S)
        if wait_s:
            raise LimitExceeded(
                "over the limits while quota is away", retry_after_s=wait_s, limits=_state(scarcest)
            )
        for account in accounts:
            account.take(1, num_tokens)
        return quota_pb2.ReserveResponse(granted_output_tokens=num_output, limits=_state(scarcest))

    def extend(self, key_id: str, limits: failure_pb2.LimitState, num_tokens: int) -> float:
        """Take tokens for an answer that runs; or take none and return the seconds to wait.
        `limits`: those that its reservation was granted under."""
        account = self._of(key_id, limits.limit_requests, limits.limit_tokens)
        wait_s = account.tokens.wait_s(num_tokens)
        if not wait_s:
            account.take(0, num_tokens)
        return wait_s

    def _of(self, name: str, num_requests: int, num_tokens: int) -> _Account:
        """The account of a key, or of other limits by their name, with these limits per minute."""
        now_s, account = self._clock.now(), self._accounts.get(name)
        if account is None:
            last = self._last_limits.get(name)
            account = _Account(
                self._share(num_requests, last.remaining_requests if last else num_requests),
                self._share(num_tokens, last.remaining_tokens if last else num_tokens),
            )
            self._accounts[name] = account
            if len(self._accounts) > MAX_KEYS:
                self._accounts.popitem(last=False)
        account.refill(now_s)
        return account

    def _share(self, limit: int, remaining: int) -> _Bucket:
        share = max(limit // self.num_gateways, 1) if limit else 0
        return _Bucket(share, min(remaining / self.num_gateways, share), self._clock.now())


def _name(bound: SharedLimits) -> str:
    """The name of an account: a key's own has the key's id."""
    return f"{bound.owner}@{bound.model}" if bound.model else bound.owner


def _fitting(bounds: Sequence[SharedLimits], request: quota_pb2.ReserveRequest) -> int:
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
    )

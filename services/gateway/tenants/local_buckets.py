"""The limits of soft tenants while quota is away: buckets of this gateway's own.

Every gateway has its share: the limits of the key, its tenant and its organisation, divided by the
gateways that quota heard from last. Reservations, extensions and concurrent requests count at all
these levels. A bucket starts at its share of what quota said last was left of that account. A
request that is larger than the share goes on when the bucket is full, into debt.

A budget, of tokens or of money, gives what was left of it, BUDGET_PART of it at most, divided
likewise, until quota is back. Money is counted at the price that quota told last; a model whose
price this gateway never heard gets none of it. For how long a key works at all is up to its stale
answer (tenants/auth.py). Usage is settled later.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from baton.system.clock import Clock
from baton.wire.failures import LimitExceeded, Unavailable
from baton.wire.v1 import failure_pb2, quota_pb2
from services.gateway.tenants.lease import extension_share
from services.gateway.tenants.principal import AccountLimits, Principal, account_name

MAX_ACCOUNTS = 10_000
BUDGET_PART = 0.25
# Prices are in thousandths of a billionth of the currency, costs in billionths.
_PER_BILLIONTH = 1000
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


@dataclass(frozen=True, slots=True)
class _Amount:
    """What a request takes. `cost` is None when the price is not known."""

    num_requests: int
    num_tokens: int
    cost: int | None


@dataclass(slots=True)
class _Account:
    """The buckets of one account, and the tokens and the money that its budgets still give."""

    limits: AccountLimits
    requests: _Bucket
    tokens: _Bucket
    budget_left: float
    cost_left: float

    def refill(self, now_s: float) -> None:
        self.requests.refill(now_s)
        self.tokens.refill(now_s)

    def may_spend(self, amount: _Amount) -> bool:
        """True when the budgets have room; a hard one never has."""
        cost = math.inf if amount.cost is None else amount.cost
        return (
            not self.limits.hard_budget
            and amount.num_tokens <= self.budget_left
            and cost <= self.cost_left
        )

    def wait_s(self, amount: _Amount) -> float:
        """The seconds until the buckets have room; 0 = now."""
        requests_s = self.requests.wait_s(amount.num_requests)
        return max(requests_s, self.tokens.wait_s(amount.num_tokens))

    def take(self, amount: _Amount) -> None:
        self.requests.level -= amount.num_requests
        self.tokens.level -= amount.num_tokens
        self.budget_left -= amount.num_tokens
        self.cost_left -= amount.cost or 0


class LocalBuckets:
    """The buckets of each account, for requests and tokens per minute, as this gateway knows them.

    `num_gateways`: those among which the limits are divided.
    """

    def __init__(self, clock: Clock) -> None:
        self.num_gateways = 1
        self._clock = clock
        # What quota said last, by account; the oldest come first.
        self._told: OrderedDict[str, failure_pb2.AccountState] = OrderedDict()
        self._prices: dict[str, quota_pb2.TokenPrice] = {}
        # The least recently used come first.
        self._accounts: OrderedDict[str, _Account] = OrderedDict()

    def quota_answers(self, limits: failure_pb2.LimitState) -> None:
        """Note what quota said is left of accounts, with which an outage would start."""
        for state in limits.accounts:
            name = account_name(state.owner, state.model)
            self._accounts.pop(name, None)
            self._told[name] = state
            self._told.move_to_end(name)
            if len(self._told) > MAX_ACCOUNTS:
                self._told.popitem(last=False)

    def quota_grants(self, model: str, answer: quota_pb2.ReserveResponse) -> None:
        """Note a grant: what is left of accounts, and the price of a served model."""
        self.quota_answers(answer.limits)
        if answer.HasField("price"):
            self._prices[model] = answer.price

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
        amount = self._amount(request.model, 1, request.num_prompt_tokens, num_output)
        accounts = self._with_budget(bounds, amount)
        scarcest = max(accounts, key=lambda account: account.wait_s(amount))
        wait_s = scarcest.wait_s(amount)
        if any(self._is_full(bound, num_open(bound.name)) for bound in bounds):
            wait_s = max(wait_s, _SLOT_RETRY_S)
        if wait_s:
            raise LimitExceeded(
                "over the limits while quota is away", retry_after_s=wait_s, limits=_state(scarcest)
            )
        for account in accounts:
            account.take(amount)
        return quota_pb2.ReserveResponse(granted_output_tokens=num_output, limits=_state(scarcest))

    def extend(
        self, bounds: Sequence[AccountLimits], model: str, num_output: int, num_prompt: int = 0
    ) -> tuple[float, str]:
        """Take tokens of all accounts for a request that has its lease; or take none and return the
        seconds to wait, and the limit that has no room. Raises Unavailable as `reserve` does."""
        amount = self._amount(model, 0, num_prompt, num_output)
        accounts = self._with_budget(bounds, amount)
        scarcest = max(accounts, key=lambda account: account.wait_s(amount), default=None)
        if scarcest and (wait_s := scarcest.wait_s(amount)):
            return wait_s, f"tokens per minute of the {scarcest.limits.scope}"
        for account in accounts:
            account.take(amount)
        return 0.0, ""

    def _amount(self, model: str, num_requests: int, num_prompt: int, num_output: int) -> _Amount:
        price, cost = self._prices.get(model), None
        if price is not None:
            cost = math.ceil(
                (num_prompt * price.prompt + num_output * price.output) / _PER_BILLIONTH
            )
        return _Amount(num_requests, num_prompt + num_output, cost)

    def _with_budget(self, bounds: Sequence[AccountLimits], amount: _Amount) -> list[_Account]:
        """All these accounts. Raises Unavailable when a budget is hard, or its part too small."""
        accounts = [self._of(bound) for bound in bounds]
        if not all(account.may_spend(amount) for account in accounts):
            raise _no_budget()
        return accounts

    def _is_full(self, bound: AccountLimits, num_open: int) -> bool:
        return bool(bound.concurrency) and num_open >= self._share(bound.concurrency)

    def _of(self, bound: AccountLimits) -> _Account:
        account = self._accounts.get(bound.name)
        if account is None or account.limits != bound:
            account = self._accounts[bound.name] = self._opened(bound)
            if len(self._accounts) > MAX_ACCOUNTS:
                self._accounts.popitem(last=False)
        self._accounts.move_to_end(bound.name)
        account.refill(self._clock.now())
        return account

    def _opened(self, bound: AccountLimits) -> _Account:
        """An account as an outage begins."""
        told = self._told.get(bound.name, failure_pb2.AccountState())
        left = {field.name: value for field, value in told.ListFields()}
        return _Account(
            bound,
            self._bucket(bound.requests_per_minute, left.get("remaining_requests")),
            self._bucket(bound.tokens_per_minute, left.get("remaining_tokens")),
            self._part(bound.budget_tokens, left.get("remaining_budget")),
            self._part(bound.budget_cost, left.get("remaining_cost")),
        )

    def _bucket(self, limit: int, left: int | None) -> _Bucket:
        share = self._share(limit) if limit else 0
        level = share if left is None else min(left / self.num_gateways, share)
        return _Bucket(share, level, self._clock.now())

    def _part(self, budget: int, left: int | None) -> float:
        """What a budget gives while quota is away."""
        if not budget:
            return math.inf
        part = budget * BUDGET_PART
        return (part if left is None else min(left, part)) / self.num_gateways

    def _share(self, limit: int) -> int:
        return max(limit // self.num_gateways, 1)


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

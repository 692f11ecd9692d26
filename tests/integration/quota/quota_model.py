"""The quota protocol in plain Python, as an oracle for the real scripts: organisations, tenants and
keys with rate buckets, concurrency, budget windows of tokens and money, over all models and over
single ones; leases, extensions, lapses and settles.

Written from the protocol's description, not from the Lua: each method answers what the script of
that name must answer at the same time in the same state. Time is in ms and passed in. A deep copy
is a snapshot, to model a failover that rolls state back.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tests.integration.quota.quota_accounts import (
    UNIT,
    Account,
    Bucket,
    ModelCaller,
    ModelLimits,
    ModelPrice,
    Place,
)

DAY_MS = 86_400_000
SLOT_RETRY_MS = 1000
SHARES = 8
NEVER = 10**18


@dataclass
class ModelLease:
    """The lease of one request. `credit` is charged for output when it lapses."""

    caller: ModelCaller
    price: ModelPrice
    prompt: int
    granted: int
    expires_ms: int
    window: int
    credit: int
    renewed: bool = False
    state: str = "held"
    charged: tuple[int, int] = (0, 0)

    @property
    def estimate(self) -> tuple[int, int]:
        """Tokens and cost."""
        return self.amount(0, self.granted)

    def amount(self, cached: int, output: int) -> tuple[int, int]:
        return self.prompt + output, self.price.cost(self.prompt, cached, output)


@dataclass(frozen=True)
class ModelHolder:
    """A renewal as its holder sends it: the granted tokens, and the most of them that it uses."""

    prompt: int
    granted: int
    used: int


@dataclass(frozen=True)
class ModelUsage:
    """The tokens of a settle."""

    prompt: int
    cached: int
    output: int


@dataclass(frozen=True)
class ModelWanted:
    """The tokens of a reservation, and the fewest of either that are taken instead; 0 = all."""

    prompt: int
    output: int
    fewest: int = 0
    fewest_prompt: int = 0
    replaces: bool = False


@dataclass(frozen=True)
class ModelAnswer:
    """The answer to a reservation. `requests` and `tokens` are the limit, what remains and the
    scope of the bucket that binds."""

    outcome: str
    granted: int = 0
    prompt: int = 0
    wait_ms: int = 0
    scope: str = ""
    requests: tuple[int, int, str] = (0, 0, "")
    tokens: tuple[int, int, str] = (0, 0, "")


Used = list[tuple[Account, str]]


class QuotaModel:
    """The state of all accounts. Outcomes are named as in the scripts."""

    def __init__(
        self,
        limits: Mapping[Place, ModelLimits],
        prices: Mapping[str, ModelPrice],
        lease_ms: int,
        start_ms: int,
    ) -> None:
        self.accounts = {place: Account(each, start_ms) for place, each in limits.items()}
        self._used_by: dict[ModelCaller, Used] = {}
        self._prices = prices
        self._lease_ms = lease_ms
        self.leases: dict[tuple[str, str], ModelLease] = {}

    def reserve(
        self, request_id: str, caller: ModelCaller, wanted: ModelWanted, now_ms: int
    ) -> ModelAnswer:
        self._pass_time(now_ms, caller.tenant)
        used = self._used(caller)
        known = self.leases.get((caller.tenant, request_id))
        if known and known.state != "held":
            return self._answer(used, "used_request_id")
        if known and (not wanted.replaces or known.prompt == wanted.prompt):
            return self._answer(used, "granted", known)
        before = known.estimate if known else None
        refusal: ModelAnswer | None = None
        for prompt in sorted({wanted.prompt, wanted.fewest_prompt or wanted.prompt}, reverse=True):
            lease = self._wanted_lease(used, caller, replace(wanted, prompt=prompt), now_ms)
            refusal = self._refusal(used, lease, before, now_ms)
            if not refusal:
                break
        if refusal:
            return refusal
        for account, _ in used:
            account.requests.take(0 if before else 1)
            account.tokens.take(lease.estimate[0] - (before or (0, 0))[0])
        self.leases[caller.tenant, request_id] = lease
        return self._answer(used, "granted", lease)

    def _wanted_lease(
        self, used: Used, caller: ModelCaller, wanted: ModelWanted, now_ms: int
    ) -> ModelLease:
        price = self._price(caller)
        output = self._fitting(used, price, wanted)
        return ModelLease(
            caller, price, wanted.prompt, output, now_ms + self._lease_ms, now_ms // DAY_MS, output
        )

    def renew(
        self, request_id: str, caller: ModelCaller, holder: ModelHolder, wanted: int, now_ms: int
    ) -> tuple[str, int]:
        """Renew a lease; returns (state, granted output tokens)."""
        self._pass_time(now_ms, caller.tenant)
        lease = self.leases.get((caller.tenant, request_id))
        lease = lease or self._recreate(request_id, caller, holder, now_ms)
        if lease is None or lease.state == "settled":
            return "lost", 0
        if lease.state == "lapsed" and not self._reopen(lease):
            return "lost", 0
        for account, _ in self._used(caller):
            account.tokens.take(holder.prompt - lease.prompt)
        lease.prompt = holder.prompt
        state = self._extend(lease, wanted)
        reported = max(lease.credit, holder.used) if lease.renewed else holder.used
        lease.credit = min(reported, lease.granted)
        lease.renewed = True
        lease.expires_ms = max(lease.expires_ms, now_ms + self._lease_ms)
        return state, lease.granted

    def settle(self, request_id: str, caller: ModelCaller, usage: ModelUsage, now_ms: int) -> str:
        """Charge what was used; returns the outcome."""
        # Settling does not reap: an expired lease that is settled now has not lapsed.
        self._refill(now_ms)
        used = self._used(caller)
        lease = self.leases.get((caller.tenant, request_id))
        if lease is None:
            lease = ModelLease(
                caller,
                self._price(caller),
                usage.prompt,
                0,
                0,
                now_ms // DAY_MS,
                0,
                False,
                "unknown",
            )
            self.leases[caller.tenant, request_id] = lease
            for account, _ in used:
                account.requests.take(1)
        elif lease.state == "settled":
            return "repeated"
        outcome = "unknown" if lease.state == "unknown" else "settled"
        held = lease.estimate[0] if lease.state == "held" else lease.charged[0]
        actual = lease.price.cost(usage.prompt, usage.cached, usage.output)
        self._recharge(lease, (usage.prompt + usage.output, actual), held)
        lease.state = "settled"
        return outcome

    def reap(self, now_ms: int) -> None:
        for tenant in {tenant for tenant, _ in self.leases}:
            self._pass_time(now_ms, tenant)
        self._refill(now_ms)

    def _used(self, caller: ModelCaller) -> Used:
        if caller not in self._used_by:
            self._used_by[caller] = [
                (self.accounts[place], scope)
                for place, scope in caller.places()
                if place in self.accounts
            ]
        return self._used_by[caller]

    def _price(self, caller: ModelCaller) -> ModelPrice:
        return self._prices.get(caller.model, ModelPrice())

    def _refill(self, now_ms: int) -> None:
        for account in self.accounts.values():
            account.requests.refill(now_ms)
            account.tokens.refill(now_ms)

    def _pass_time(self, now_ms: int, tenant: str) -> None:
        self._refill(now_ms)
        for (of_tenant, _), lease in self.leases.items():
            if of_tenant == tenant and lease.state == "held" and lease.expires_ms <= now_ms:
                self._recharge(lease, lease.amount(0, lease.credit), lease.estimate[0])
                lease.state = "lapsed"

    def _recharge(self, lease: ModelLease, amount: tuple[int, int], already: int) -> None:
        """Charge a lease that took `already` tokens from its buckets."""
        for account, _ in self._used(lease.caller):
            account.tokens.take(amount[0] - already)
            account.charge(lease.window, amount, lease.charged)
        lease.charged = amount

    def _open_leases(self, account: Account) -> Iterator[ModelLease]:
        for lease in self.leases.values():
            if lease.state == "held" and any(account is a for a, _ in self._used(lease.caller)):
                yield lease

    def _budget_has(self, account: Account, window: int, kind: int, amount: int) -> bool:
        limit = account.budgets[kind]
        held = sum(
            lease.estimate[kind] for lease in self._open_leases(account) if lease.window == window
        )
        spent = account.spent.get(window, (0, 0))[kind]
        return not limit or spent + held + amount <= limit

    def _budgets_have(self, lease: ModelLease, more: tuple[int, int]) -> bool:
        return all(
            self._budget_has(account, lease.window, kind, more[kind])
            for account, _ in self._used(lease.caller)
            for kind in (0, 1)
        )

    def _has_concurrency(self, account: Account) -> bool:
        limit = account.limits.concurrency
        return not limit or sum(1 for _ in self._open_leases(account)) < limit

    def _fitting(self, used: Used, price: ModelPrice, wanted: ModelWanted) -> int:
        if not wanted.fewest:
            return wanted.output
        rooms = [wanted.output]
        for account, _ in used:
            if tpm := account.limits.tokens_per_minute:
                rooms += [tpm // SHARES, tpm - wanted.prompt]
            if budget := account.limits.budget_tokens:
                rooms.append(budget - wanted.prompt)
            if (money := account.limits.budget_cost) and price.output:
                left = money - price.cost(wanted.prompt, 0, 0)
                rooms.append(left * 1000 // price.output)
        return max(wanted.fewest, min(rooms))

    def _refusal(
        self, used: Used, lease: ModelLease, before: tuple[int, int] | None, now_ms: int
    ) -> ModelAnswer | None:
        """The refusal of a lease; `before` is what it holds already, if it is held."""
        size = lease.estimate[0]
        too_small = [
            (account.limits.tokens_per_minute, number)
            for number, (account, _) in enumerate(used)
            if 0 < account.limits.tokens_per_minute < size
        ]
        if too_small:
            bound = used[min(too_small)[1]]
            return self._answer(used, "exceeds_tokens", scope=bound[1], bound={"tokens": bound})
        tokens, cost = before or (0, 0)
        more = (size - tokens, lease.estimate[1] - cost)
        refusal = self._spent(used, lease, more, now_ms)
        return refusal or self._over_rate(used, more[0], is_held=before is not None)

    def _spent(
        self, used: Used, lease: ModelLease, more: tuple[int, int], now_ms: int
    ) -> ModelAnswer | None:
        left_ms = DAY_MS - now_ms % DAY_MS
        waits = [
            (NEVER if lease.estimate[kind] > account.budgets[kind] else left_ms, scope)
            for kind in (0, 1)
            for account, scope in used
            if not self._budget_has(account, lease.window, kind, more[kind])
        ]
        if not waits:
            return None
        wait_ms, scope = max(waits, key=lambda wait: wait[0])
        return self._answer(used, "budget", wait_ms=0 if wait_ms == NEVER else wait_ms, scope=scope)

    def _over_rate(self, used: Used, size: int, *, is_held: bool) -> ModelAnswer | None:
        """The refusal of `size` more tokens; a lease that is held has its request and its slot."""
        waits = {
            "requests": [account.requests.wait_ms(0 if is_held else 1) for account, _ in used],
            "tokens": [account.tokens.wait_ms(size) for account, _ in used],
            "concurrency": [
                0 if is_held or self._has_concurrency(account) else SLOT_RETRY_MS
                for account, _ in used
            ],
        }
        bound = {name: used[each.index(max(each))] for name, each in waits.items() if max(each)}
        if not bound:
            return None
        outcome, (_, scope) = next(iter(bound.items()))
        binding = {} if outcome == "concurrency" else bound
        longest_ms = max(max(each) for each in waits.values())
        return self._answer(used, outcome, wait_ms=longest_ms, scope=scope, bound=binding)

    def _answer(
        self,
        used: Used,
        outcome: str,
        lease: ModelLease | None = None,
        *,
        wait_ms: int = 0,
        scope: str = "",
        bound: Mapping[str, tuple[Account, str]] | None = None,
    ) -> ModelAnswer:
        """Answer with the state of the buckets in `bound`, else of the scarcest."""
        states = []
        for name in ("requests", "tokens"):
            named = (bound or {}).get(name)
            buckets = [(getattr(each, name), where) for each, where in ([named] if named else used)]
            states.append(_scarcest([(bucket, where) for bucket, where in buckets if bucket.limit]))
        granted, prompt = (lease.granted, lease.prompt) if lease else (0, 0)
        return ModelAnswer(outcome, granted, prompt, wait_ms, scope, *states)

    def _extend(self, lease: ModelLease, wanted: int) -> str:
        if wanted <= lease.granted:
            return "held"
        more = lease.amount(0, wanted)
        more = (more[0] - lease.estimate[0], more[1] - lease.estimate[1])
        if not self._budgets_have(lease, more):
            return "refused"
        used = self._used(lease.caller)
        if any(account.tokens.wait_ms(more[0]) for account, _ in used):
            return "short"
        for account, _ in used:
            account.tokens.take(more[0])
        lease.granted = wanted
        return "held"

    def _recreate(
        self, request_id: str, caller: ModelCaller, holder: ModelHolder, now_ms: int
    ) -> ModelLease | None:
        lease = ModelLease(
            caller, self._price(caller), holder.prompt, holder.granted,
            now_ms + self._lease_ms, now_ms // DAY_MS, credit=holder.granted,
        )  # fmt: skip
        if not self._budgets_have(lease, lease.estimate):
            return None
        for account, _ in self._used(caller):
            account.tokens.take(lease.estimate[0])
        self.leases[caller.tenant, request_id] = lease
        return lease

    def _reopen(self, lease: ModelLease) -> bool:
        used, estimate = self._used(lease.caller), lease.estimate
        more = (estimate[0] - lease.charged[0], estimate[1] - lease.charged[1])
        if not all(self._has_concurrency(account) for account, _ in used):
            return False
        if not self._budgets_have(lease, more):
            return False
        for account, _ in used:
            account.tokens.take(more[0])
            account.charge(lease.window, (0, 0), lease.charged)
        lease.charged, lease.state = (0, 0), "held"
        return True


def _scarcest(buckets: list[tuple[Bucket, str]]) -> tuple[int, int, str]:
    if not buckets:
        return 0, 0, ""
    bucket, where = min(buckets, key=lambda each: each[0].level)
    return bucket.limit, max(0, bucket.level // UNIT), where

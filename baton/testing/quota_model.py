"""The quota protocol in plain Python, as an oracle for the real scripts: one key of one tenant with
rate buckets, concurrency, budget windows, leases, extensions, lapses and settles.

Written from the protocol's description, not from the Lua: each method answers what the script of
that name must answer at the same time in the same state. Time is in ms and passed in. A deep copy
is a snapshot, to model a failover that rolls state back.
"""

from dataclasses import dataclass, field

UNIT = 60_000
DAY_MS = 86_400_000


@dataclass
class ModelLimits:
    """The limits of a key: 0 = unlimited; the budget is per UTC day."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    concurrency: int = 0
    budget_tokens: int = 0


@dataclass
class ModelLease:
    """The lease of one request. `credit` is charged for output when it lapses."""

    prompt: int
    granted: int
    expires_ms: int
    window: int
    credit: int
    renewed: bool = False
    state: str = "held"
    charged: int = 0

    @property
    def estimate(self) -> int:
        return self.prompt + self.granted


@dataclass(frozen=True)
class ModelHolder:
    """A renewal as its holder sends it: the granted tokens, and the most of them that it uses."""

    prompt: int
    granted: int
    used: int


@dataclass
class Bucket:
    """A refilling bucket in units of 1/60000; `limit` units flow back per ms."""

    limit: int
    level: int = field(init=False)
    at_ms: int = 0

    def __post_init__(self) -> None:
        self.level = self.limit * UNIT

    def refill(self, now_ms: int) -> None:
        self.level = min(self.limit * UNIT, self.level + self.limit * (now_ms - self.at_ms))
        self.at_ms = now_ms

    def has(self, amount: int) -> bool:
        return not self.limit or amount <= 0 or self.level >= amount * UNIT

    def take(self, amount: int) -> None:
        full = self.limit * UNIT
        self.level = max(-full, min(full, self.level - amount * UNIT))


class QuotaModel:
    """The state of one key. Outcomes are named as in the scripts."""

    def __init__(self, limits: ModelLimits, lease_ms: int, start_ms: int) -> None:
        self.limits = limits
        self._lease_ms = lease_ms
        self.requests = Bucket(limits.requests_per_minute, at_ms=start_ms)
        self.tokens = Bucket(limits.tokens_per_minute, at_ms=start_ms)
        self.leases: dict[str, ModelLease] = {}
        self.spent: dict[int, int] = {}

    def reserve(self, request_id: str, prompt: int, output: int, now_ms: int) -> str:
        self._pass_time(now_ms)
        known = self.leases.get(request_id)
        if known:
            return "granted" if known.state == "held" else "used_request_id"
        amount = prompt + output
        if self.limits.tokens_per_minute and amount > self.limits.tokens_per_minute:
            return "exceeds_tokens"
        window = now_ms // DAY_MS
        if not self._budget_has(window, amount):
            return "budget"
        if not self.requests.has(1):
            return "requests"
        if not self.tokens.has(amount):
            return "tokens"
        if not self._has_concurrency():
            return "concurrency"
        self.requests.take(1)
        self.tokens.take(amount)
        self.leases[request_id] = ModelLease(
            prompt, output, now_ms + self._lease_ms, window, credit=output
        )
        return "granted"

    def renew(
        self, request_id: str, holder: ModelHolder, wanted: int, now_ms: int
    ) -> tuple[str, int]:
        """Renew a lease; returns (state, granted output tokens)."""
        self._pass_time(now_ms)
        lease = self.leases.get(request_id) or self._recreate(request_id, holder, now_ms)
        if lease is None or lease.state == "settled":
            return "lost", 0
        if lease.state == "lapsed" and not self._reopen(lease):
            return "lost", 0
        state = self._extend(lease, wanted)
        reported = max(lease.credit, holder.used) if lease.renewed else holder.used
        lease.credit = min(reported, lease.granted)
        lease.renewed = True
        lease.expires_ms = max(lease.expires_ms, now_ms + self._lease_ms)
        return state, lease.granted

    def settle(self, request_id: str, prompt: int, output: int, now_ms: int) -> str:
        # Settling does not reap: an expired lease that is settled now has not lapsed.
        self.requests.refill(now_ms)
        self.tokens.refill(now_ms)
        actual = prompt + output
        lease = self.leases.get(request_id)
        if lease is None:
            lease = ModelLease(prompt, 0, 0, now_ms // DAY_MS, 0, state="unknown")
            self.leases[request_id] = lease
            self.requests.take(1)
        elif lease.state == "settled":
            return "repeated"
        outcome = "unknown" if lease.state == "unknown" else "settled"
        already = lease.estimate if lease.state == "held" else lease.charged
        self.tokens.take(actual - (0 if outcome == "unknown" else already))
        self._charge(lease, actual)
        lease.state = "settled"
        return outcome

    def reap(self, now_ms: int) -> None:
        self._pass_time(now_ms)

    def held(self) -> int:
        return sum(lease.estimate for lease in self.leases.values() if lease.state == "held")

    def num_open(self) -> int:
        return sum(lease.state == "held" for lease in self.leases.values())

    def _pass_time(self, now_ms: int) -> None:
        self.requests.refill(now_ms)
        self.tokens.refill(now_ms)
        for lease in self.leases.values():
            if lease.state == "held" and lease.expires_ms <= now_ms:
                charge = lease.prompt + lease.credit
                self.tokens.take(charge - lease.estimate)
                self._charge(lease, charge)
                lease.state = "lapsed"

    def _charge(self, lease: ModelLease, amount: int) -> None:
        self.spent[lease.window] = self.spent.get(lease.window, 0) + amount - lease.charged
        lease.charged = amount

    def _budget_has(self, window: int, amount: int) -> bool:
        held = sum(
            lease.estimate
            for lease in self.leases.values()
            if lease.state == "held" and lease.window == window
        )
        budget = self.limits.budget_tokens
        return not budget or self.spent.get(window, 0) + held + amount <= budget

    def _has_concurrency(self) -> bool:
        return not self.limits.concurrency or self.num_open() < self.limits.concurrency

    def _extend(self, lease: ModelLease, wanted: int) -> str:
        more = wanted - lease.granted
        if more <= 0:
            return "held"
        if not self._budget_has(lease.window, more):
            return "refused"
        if not self.tokens.has(more):
            return "short"
        self.tokens.take(more)
        lease.granted = wanted
        return "held"

    def _recreate(self, request_id: str, holder: ModelHolder, now_ms: int) -> ModelLease | None:
        window = now_ms // DAY_MS
        amount = holder.prompt + holder.granted
        if not self._budget_has(window, amount):
            return None
        self.tokens.take(amount)
        lease = ModelLease(
            holder.prompt, holder.granted, now_ms + self._lease_ms, window, credit=holder.granted
        )
        self.leases[request_id] = lease
        return lease

    def _reopen(self, lease: ModelLease) -> bool:
        more = lease.estimate - lease.charged
        if not self._has_concurrency() or not self._budget_has(lease.window, more):
            return False
        self.tokens.take(more)
        self._charge(lease, 0)
        lease.state = "held"
        return True

"""What limits, prices, buckets and budgets are to the plain model of the quota protocol."""

from collections.abc import Iterator
from dataclasses import dataclass, field

UNIT = 60_000


@dataclass
class ModelLimits:
    """The limits of an account: 0 = unlimited; the budgets are per UTC day."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    concurrency: int = 0
    budget_tokens: int = 0
    budget_cost: int = 0


@dataclass(frozen=True)
class ModelPrice:
    """The thousandths of a billionth of the currency that one token costs."""

    prompt: int = 0
    cached: int = 0
    output: int = 0

    def cost(self, prompt: int, cached: int, output: int) -> int:
        cached = min(cached, prompt)
        units = (prompt - cached) * self.prompt + cached * self.cached + output * self.output
        return -(-units // 1000)


# The owner of limits ("key_1", "tenant", "organisation") and a model; "" = over all of them.
Place = tuple[str, str]


@dataclass(frozen=True)
class ModelCaller:
    """A request's tenant and key, and its model."""

    tenant: str
    key_id: str
    model: str

    def places(self) -> Iterator[tuple[Place, str]]:
        """The accounts that the request may use, from its key outwards, with their scopes."""
        organisation, slash, _ = self.tenant.partition("/")
        owners = [(f"{self.tenant}:{self.key_id}", "key"), (self.tenant, "tenant")]
        if slash:
            owners.append((f"{organisation}/", "organisation"))
        for owner, scope in owners:
            yield (owner, ""), scope
            yield (owner, self.model), f"{scope}, model {self.model}"


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

    def wait_ms(self, amount: int) -> int:
        if not self.limit or amount <= 0 or self.level >= amount * UNIT:
            return 0
        return -(-(amount * UNIT - self.level) // self.limit)

    def take(self, amount: int) -> None:
        full = self.limit * UNIT
        self.level = max(-full, min(full, self.level - amount * UNIT))


class Account:
    """What was used of one set of limits."""

    def __init__(self, limits: ModelLimits, start_ms: int) -> None:
        self.limits = limits
        self.budgets = (limits.budget_tokens, limits.budget_cost)
        self.requests = Bucket(limits.requests_per_minute, at_ms=start_ms)
        self.tokens = Bucket(limits.tokens_per_minute, at_ms=start_ms)
        self.spent: dict[int, tuple[int, int]] = {}

    def charge(self, window: int, amount: tuple[int, int], before: tuple[int, int]) -> None:
        """Add to what a window has spent, in place of what was charged before."""
        spent = self.spent.get(window, (0, 0))
        self.spent[window] = (spent[0] + amount[0] - before[0], spent[1] + amount[1] - before[1])

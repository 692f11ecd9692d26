"""Limits of keys, tenants and organisations, and the fields in Redis at which the ledger's scripts
read them.

The tenant `bigco/search` belongs to the organisation `bigco`; a tenant without a slash belongs to
none. The ledger of an organisation and of all its tenants is in one hash slot, because one script
decides on all levels at once.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Literal

import msgspec

from baton.wire.v1 import quota_pb2

MAX_LIMIT = 10**9
MAX_TOKENS_OF_BUDGET = 10**14
# Billionths of the currency: the scripts' numbers are exact below 2^53.
MAX_COST_OF_BUDGET = 9 * 10**15
MAX_MODELS = 64

_PART = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
# Names are parts of Redis hash tags and log lines: no braces, spaces, control characters.
_NAME = rf"^{_PART}\Z"
_TENANT_NAME = rf"^{_PART}(/{_PART})?\Z"
_MODEL_NAME = r"^[!-:<-~]{1,256}\Z"
Name = Annotated[str, msgspec.Meta(pattern=_NAME)]
TenantName = Annotated[str, msgspec.Meta(pattern=_TENANT_NAME)]
# The scripts find a model's limits in a list that spaces and semicolons divide.
ModelName = Annotated[str, msgspec.Meta(pattern=_MODEL_NAME)]
_WORD = "1 to 64 letters, digits, '_', '.' or '-', the first a letter or digit"
# What a name must be, in words, for messages.
NAME_RULES = {
    _NAME: _WORD,
    _TENANT_NAME: f"NAME or ORGANISATION/NAME; each {_WORD}",
    _MODEL_NAME: "1 to 256 visible ASCII characters without ';'",
}
Limit = Annotated[int, msgspec.Meta(ge=0, le=MAX_LIMIT)]
Period = Literal["", "day", "month"]

# The name of a tenant's or an organisation's own limits among those of its keys.
WHOLE = "-"

PERIODS = {
    "": quota_pb2.BUDGET_PERIOD_UNSPECIFIED,
    "day": quota_pb2.BUDGET_PERIOD_DAY,
    "month": quota_pb2.BUDGET_PERIOD_MONTH,
}


class ModelLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Limits over one model or over all of them; 0 = unlimited.

    `budget_tokens` counts tokens in each UTC day or month, `budget_cost` money: billionths of the
    currency of the price list.
    """

    requests_per_minute: Limit = 0
    tokens_per_minute: Limit = 0
    concurrency: Limit = 0
    budget_tokens: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS_OF_BUDGET)] = 0
    budget_period: Period = ""
    budget_cost: Annotated[int, msgspec.Meta(ge=0, le=MAX_COST_OF_BUDGET)] = 0
    cost_period: Period = ""
    hard_budget: bool = False

    def __post_init__(self) -> None:
        if bool(self.budget_tokens) != bool(self.budget_period):
            raise ValueError("a budget needs both an amount of tokens and a period")
        if bool(self.budget_cost) != bool(self.cost_period):
            raise ValueError("a budget of money needs both an amount and a period")
        if self.hard_budget and not (self.budget_tokens or self.budget_cost):
            raise ValueError("a hard budget needs an amount and a period")

    def to_wire(self) -> quota_pb2.Limits:
        return quota_pb2.Limits(
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
            concurrency=self.concurrency,
            budget_tokens=self.budget_tokens,
            budget_period=PERIODS[self.budget_period],
            budget_cost=self.budget_cost,
            cost_period=PERIODS[self.cost_period],
            hard_budget=self.hard_budget,
        )

    def numbers(self, *, is_restoring: bool) -> dict[str, int]:
        """The values in Redis by their names in the scripts. With `is_restoring`, not all that was
        spent of budgets is known yet: hard ones are refused."""
        return {
            "rpm": self.requests_per_minute,
            "tpm": self.tokens_per_minute,
            "concurrency": self.concurrency,
            "budget": self.budget_tokens,
            "period": int(PERIODS[self.budget_period]),
            "cost": self.budget_cost,
            "cost_period": int(PERIODS[self.cost_period]),
            "restoring": int(is_restoring and self.hard_budget),
        }


class KeyLimits(ModelLimits, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The limits of one key, or of all keys of a tenant or an organisation together: over all
    models, and besides over single ones."""

    by_model: Annotated[dict[ModelName, ModelLimits], msgspec.Meta(max_length=MAX_MODELS)] = {}

    def by_models(self) -> Iterator[tuple[str, ModelLimits]]:
        """Yield these limits under the name "", then those of each model under its own."""
        yield "", self
        yield from self.by_model.items()

    @property
    def has_hard_budget(self) -> bool:
        """True when a budget, over all models or over one, is hard."""
        return any(limits.hard_budget for _, limits in self.by_models())

    def redis_fields(self, *, is_restoring: bool) -> list[str | int]:
        """All fields of the hash in Redis, so that none stays from earlier limits."""
        fields: list[str | int] = []
        for name, value in self.numbers(is_restoring=is_restoring).items():
            fields += [name, value]
        models = "".join(
            f"{model} {' '.join(map(str, limits.numbers(is_restoring=is_restoring).values()))};"
            for model, limits in self.by_model.items()
        )
        return [*fields, "models", f";{models}" if models else ""]


class OwnerLimits(msgspec.Struct, frozen=True, tag_field="op", tag="limits"):
    """A line of the registry that sets the limits of a tenant or of an organisation.

    They hold for all its keys together, beside each key's own. Empty limits take them away.
    """

    level: Literal["tenant", "organisation"]
    name: TenantName
    limits: KeyLimits = KeyLimits()

    def __post_init__(self) -> None:
        if self.level == "organisation" and "/" in self.name:
            raise ValueError(f"{self.name} names a tenant, not an organisation")

    @property
    def owner(self) -> str:
        """The level and the name, by which the last line counts."""
        return f"{self.level}:{self.name}"

    @property
    def root(self) -> str:
        """The prefix of the Redis keys of these limits and of what was used of them."""
        if self.level == "tenant":
            return tenant_root(self.name)
        return organisation_root(self.name)


@lru_cache(maxsize=1024)
def organisation_of(tenant: str) -> str:
    """The organisation that a tenant belongs to; empty = none."""
    organisation, slash, _ = tenant.partition("/")
    return organisation if slash else ""


def organisation_root(organisation: str) -> str:
    """The prefix of the Redis keys of an organisation's own limits."""
    return f"baton:{{{organisation}}}/"


@lru_cache(maxsize=1024)
def tenant_root(tenant: str) -> str:
    """The prefix of every Redis key of a tenant's ledger; one hash slot for each organisation, and
    for each tenant without one."""
    organisation, slash, rest = tenant.partition("/")
    return f"baton:{{{organisation}}}{slash}{rest}"


def limits_key(root: str, name: str) -> str:
    """The Redis key of the limits of an API key, or with WHOLE of the whole tenant or
    organisation."""
    return f"{root}:limits:{name}"


def owner_key(owner: str) -> str:
    """The Redis key of a tenant's or organisation's line, which is read when a key is looked up."""
    return f"baton:owner:{owner}"

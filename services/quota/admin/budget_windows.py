"""What is spent and held of budgets in a UTC day and month, for the admin API."""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from baton.wire.key_limits import WHOLE, KeyLimits, ModelLimits, organisation_of, tenant_root
from baton.wire.key_registry import Entries
from services.quota.restore import window_id
from services.quota.store import Store

_FIELDS = ("spent", "held", "cost_spent", "cost_held")


class BudgetWindow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A budget in one window. Costs are billionths of the price list's currency."""

    owner: str
    window: str
    spent_tokens: int
    held_tokens: int
    budget_tokens: int
    spent_cost: int
    held_cost: int
    budget_cost: int
    # Empty: over all models.
    model: str = ""


@dataclass(frozen=True, slots=True)
class _Owner:
    """A key, tenant or organisation: its name for people, and for the scripts."""

    name: str
    root: str
    id: str
    limits: KeyLimits


async def budget_windows(
    store: Store, entries: Entries, tenant: str, unix_ms: int
) -> list[BudgetWindow]:
    """The budgets of a tenant, its organisation and its keys, in the windows of `unix_ms`. Raises
    Unavailable."""
    return [
        await _read(store, owner, model, limits, window)
        for owner in _owners(entries, tenant)
        for model, limits in owner.limits.by_models()
        for window in _windows(limits, unix_ms)
    ]


def _owners(entries: Entries, tenant: str) -> Iterator[_Owner]:
    organisation = organisation_of(tenant)
    for owner in entries.limits.values():
        if owner.name == (tenant if owner.level == "tenant" else organisation):
            yield _Owner(owner.owner, owner.root, WHOLE, owner.limits)
    for record in entries.keys.values():
        if record.tenant == tenant:
            yield _Owner(f"key:{record.key_id}", tenant_root(tenant), record.key_id, record.limits)


def _windows(limits: ModelLimits, unix_ms: int) -> list[str]:
    periods = {limits.budget_period, limits.cost_period} - {""}
    return sorted(window_id(period, unix_ms) for period in periods)


async def _read(
    store: Store, owner: _Owner, model: str, limits: ModelLimits, window: str
) -> BudgetWindow:
    name = f"{owner.root}:budget:{owner.id}:{window}" + (f"@{model}" if model else "")
    found = await store.execute("HMGET", name, *_FIELDS)
    spent, held, cost_spent, cost_held = (int(value or 0) for value in found)
    return BudgetWindow(
        owner=owner.name,
        window=window,
        spent_tokens=spent,
        held_tokens=held,
        budget_tokens=limits.budget_tokens,
        spent_cost=cost_spent,
        held_cost=cost_held,
        budget_cost=limits.budget_cost,
        model=model,
    )

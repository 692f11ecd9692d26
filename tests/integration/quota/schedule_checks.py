"""Checks of a random schedule of the quota protocol when it is over."""

from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from baton.wire import usage_log
from baton.wire.key_limits import WHOLE, organisation_root, tenant_root
from tests.integration.quota.limited_keys import PRICES
from tests.integration.quota.quota_accounts import ModelCaller, Place
from tests.integration.quota.quota_model import DAY_MS

if TYPE_CHECKING:
    from tests.integration.quota.test_quota_model_schedules import Schedule


async def check(schedule: "Schedule") -> None:
    """Assert I1 to I3 at the end of a schedule."""
    bills = {line.request_id: line for line in usage_log.final_lines(schedule.archive)}
    for request_id, (caller, usage) in schedule.truth.items():
        line = bills[request_id]
        tokens = (line.num_prompt_tokens, line.num_cached_tokens, line.num_output_tokens)
        assert tokens == (usage.prompt, usage.cached, usage.output), "I1"
        assert line.cost == PRICES[caller.model].cost(*tokens), "I1"
        assert line.price_version == "v1"
        assert not line.provisional, "I1"
    await _check_nothing_is_left(schedule)
    if schedule.failover:
        return
    finals = Counter(line.request_id for line in schedule.archive if not line.provisional)
    assert finals == Counter(schedule.truth.keys()), "I1"
    for request_id, holder in schedule.abandoned.items():
        line = bills[request_id]
        assert line.provisional
        assert line.num_output_tokens == holder.confirmed, "I1"
        price = PRICES[holder.caller.model]
        assert line.cost == price.cost(holder.told_prompt, 0, holder.confirmed), "I1"
    _check_nothing_was_overspent(schedule)


async def _check_nothing_is_left(schedule) -> None:
    for tenant in schedule.limited.tenants:
        assert await schedule.store.execute("ZCARD", f"{tenant_root(tenant)}:leases") == 0, "I2"
    for place, account in schedule.model.accounts.items():
        name, suffix = _stored(place)
        slots = await schedule.store.execute("HGET", name.format("account"), f"slots{suffix}")
        assert int(slots or 0) == 0, "I2"
        await _check_budgets(schedule, place, account.spent)


async def _check_budgets(schedule, place: Place, expected: dict[int, tuple[int, int]]) -> None:
    limits, (name, suffix) = schedule.limited.limits[place], _stored(place)
    for day in range(schedule.start_ms // DAY_MS, schedule.now_ms // DAY_MS + 1):
        window = datetime.fromtimestamp(day * 86_400, UTC).strftime("d%Y%m%d")
        spent, held, cost_spent, cost_held = (
            int(value or 0)
            for value in await schedule.store.execute(
                "HMGET", f"{name.format('budget')}:{window}{suffix}",
                "spent", "held", "cost_spent", "cost_held",
            )
        )  # fmt: skip
        assert held == cost_held == 0, "I2"
        tokens, cost = expected.get(day, (0, 0))
        assert spent == (tokens if limits.budget_tokens else 0), "I1"
        assert cost_spent == (cost if limits.budget_cost else 0), "I1"
        if not schedule.failover:
            assert spent <= limits.budget_tokens, "I3"
            assert cost_spent <= limits.budget_cost, "I3"


def _check_nothing_was_overspent(schedule) -> None:
    elapsed_ms = schedule.end_ms - schedule.start_ms
    for place, limits in schedule.limited.limits.items():
        used = sum(u.prompt + u.output for c, u in schedule.truth.values() if _uses(place, c))
        used += sum(
            h.prompt + h.produced for h in schedule.abandoned.values() if _uses(place, h.caller)
        )
        for limit, amount in (
            (limits.tokens_per_minute, used),
            (limits.requests_per_minute, num_of(place, schedule.admitted)),
        ):
            assert not limit or amount <= limit + limit * elapsed_ms / 60_000, "I3"


def _uses(place: Place, caller: ModelCaller) -> bool:
    return place in [used for used, _ in caller.places()]


def num_of(place: Place, callers: list[ModelCaller]) -> int:
    return sum(_uses(place, caller) for caller in callers)


def _stored(place: Place) -> tuple[str, str]:
    """The Redis key of an account, with {} for its kind, and the suffix of its model."""
    owner, model = place
    tenant, _, key_id = owner.partition(":")
    root = organisation_root(tenant[:-1]) if tenant.endswith("/") else tenant_root(tenant)
    root = root.replace("{", "{{").replace("}", "}}")
    return f"{root}:{{}}:{key_id or WHOLE}", f"@{model}" if model else ""

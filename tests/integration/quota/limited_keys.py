"""Tenants, keys and limits of one random schedule of the quota protocol."""

import random
from typing import Any

from baton.wire import key_registry
from baton.wire.key_limits import KeyLimits, organisation_of
from baton.wire.key_limits import ModelLimits as Limits
from tests.integration.quota.quota_accounts import ModelCaller, ModelLimits, ModelPrice, Place

MODELS = ("small", "large")
PRICES = {"small": ModelPrice(1_500_000, 700_000, 4_000_001), "large": ModelPrice(3, 3, 999)}
PRICE_LIST = {
    "version": "v1",
    "currency": "USD",
    "models": {
        "small": {"prompt": "1.5", "cached": "0.7", "output": "4.000001"},
        "large": {"prompt": "0.000003", "output": "0.000999"},
    },
}


class Limited:
    """The keys of one schedule, and the limits that hold for them."""

    def __init__(self, rng: random.Random, name: str) -> None:
        self._random = rng
        tenants = rng.choice([[name], [f"{name}/a"], [f"{name}/a", f"{name}/b"]])
        keys = [
            (tenant, key) for tenant in tenants for key in rng.choice([["key"], ["key", "two"]])
        ]
        self.callers = [ModelCaller(*key, model) for key in keys for model in MODELS]
        self.tenants = tenants
        self.limits: dict[Place, ModelLimits] = {}
        for caller in self.callers:
            for place, scope in caller.places():
                if place not in self.limits and rng.random() < self._chance(scope):
                    self.limits[place] = self._draw(1 if "key" in scope else 2)
                    # Limits of a model come with some over all models, which may be unlimited.
                    self.limits.setdefault((place[0], ""), ModelLimits())

    @staticmethod
    def _chance(scope: str) -> float:
        if scope == "key":
            return 1.0
        return 0.2 if "model" in scope else 0.5

    def _draw(self, scale: int) -> ModelLimits:
        choose = self._random.choice
        return ModelLimits(
            requests_per_minute=choose([0, 5, 20]) * scale,
            tokens_per_minute=choose([0, 200, 700]) * scale,
            concurrency=choose([0, 2, 5]) * scale,
            budget_tokens=choose([0, 0, 150, 300, 1000]) * scale,
            budget_cost=choose([0, 0, 300_000, 2_000_000]) * scale,
        )

    def records(self) -> list[key_registry.Record]:
        """What the registry says of them: owners first. Only owners with limits have a line."""
        owners: list[key_registry.Record] = []
        for level, names in (
            ("organisation", sorted(filter(None, {organisation_of(t) for t in self.tenants}))),
            ("tenant", self.tenants),
        ):
            for name in names:
                limits = self._of_owner(f"{name}/" if level == "organisation" else name)
                if limits != KeyLimits():
                    owners.append(key_registry.owner_limits(level, name, limits))
        keys = {(caller.tenant, caller.key_id): caller for caller in self.callers}
        return owners + [self._key(caller) for caller in keys.values()]

    def _key(self, caller: ModelCaller) -> key_registry.KeyRecord:
        return key_registry.KeyRecord(
            key_id=caller.key_id,
            tenant=caller.tenant,
            digest="0" * 64,
            shown="",
            created_unix_s=0,
            limits=self._of_owner(f"{caller.tenant}:{caller.key_id}"),
        )

    def _of_owner(self, owner: str) -> KeyLimits:
        of = {model: self.limits.get((owner, model)) for model in ("", *MODELS)}
        by_model = {model: Limits(**_fields(of[model])) for model in MODELS if of[model]}
        return KeyLimits(**_fields(of[""] or ModelLimits()), by_model=by_model)


def _fields(limits: ModelLimits) -> dict[str, Any]:
    return {
        "requests_per_minute": limits.requests_per_minute,
        "tokens_per_minute": limits.tokens_per_minute,
        "concurrency": limits.concurrency,
        "budget_tokens": limits.budget_tokens,
        "budget_period": "day" if limits.budget_tokens else "",
        "budget_cost": limits.budget_cost,
        "cost_period": "day" if limits.budget_cost else "",
    }

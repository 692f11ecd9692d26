"""Limits of keys, tenants and organisations: their lines in the registry, their fields in Redis."""

import msgspec
import pytest

from baton.wire import key_registry
from baton.wire.key_limits import (
    WHOLE,
    KeyLimits,
    ModelLimits,
    OwnerLimits,
    limits_key,
    organisation_of,
    organisation_root,
    tenant_root,
)
from baton.wire.key_registry import RegistryError, owner_limits, redis_commands

LIMITS = KeyLimits(
    tokens_per_minute=500,
    budget_cost=7_000_000_000,
    cost_period="month",
    by_model={"large": ModelLimits(requests_per_minute=3, budget_tokens=9, budget_period="day")},
)


def fields_of(command):
    assert command[0] == "HSET"
    return dict(zip(command[2::2], command[3::2], strict=True))


def test_an_organisation_and_its_tenants_share_a_hash_slot():
    assert tenant_root("bigco/search") == "baton:{bigco}/search"
    assert organisation_root("bigco") == "baton:{bigco}/"
    assert organisation_of("bigco/search") == "bigco"
    assert organisation_of("acme") == ""


def test_a_tenant_and_an_organisation_of_one_name_share_no_redis_key():
    assert limits_key(tenant_root("acme"), WHOLE) != limits_key(organisation_root("acme"), WHOLE)


def test_the_last_limits_of_an_owner_count(tmp_path):
    file = tmp_path / "registry.jsonl"
    for limits in (LIMITS, KeyLimits(concurrency=2)):
        key_registry.append(file, owner_limits("tenant", "bigco/search", limits))
    key_registry.append(file, owner_limits("organisation", "bigco", LIMITS))
    entries = key_registry.read(file)
    assert entries.limits == {
        "tenant:bigco/search": OwnerLimits("tenant", "bigco/search", KeyLimits(concurrency=2)),
        "organisation:bigco": OwnerLimits("organisation", "bigco", LIMITS),
    }


def test_limits_of_owners_are_declared_before_keys():
    _, key = key_registry.new_key(b"s" * 32, "acme", KeyLimits(), now_unix_s=0)
    entries = key_registry.Entries()
    for line in (key, owner_limits("tenant", "acme", LIMITS)):
        entries.take(line)
    assert [type(record).__name__ for record in entries.records()] == ["OwnerLimits", "KeyRecord"]


def test_redis_gets_every_number_of_the_limits_of_all_models_and_of_each():
    hash_command, _ = redis_commands(owner_limits("tenant", "acme", LIMITS))
    assert hash_command[1] == "baton:{acme}:limits:-"
    assert fields_of(hash_command) == {
        "rpm": 0, "tpm": 500, "concurrency": 0, "budget": 0, "period": 0,
        "cost": 7_000_000_000, "cost_period": 2, "restoring": 0,
        "models": ";large 3 0 0 9 1 0 0 0;",
    }  # fmt: skip


def test_only_hard_budgets_wait_until_they_are_restored():
    hard = ModelLimits(budget_cost=1, cost_period="day", hard_budget=True)
    limits = KeyLimits(budget_tokens=5, budget_period="day", by_model={"m": hard})
    [command, _] = redis_commands(owner_limits("tenant", "acme", limits), is_restoring=True)
    assert fields_of(command)["restoring"] == 0
    assert fields_of(command)["models"] == ";m 0 0 0 0 0 1 1 1;"


def test_empty_limits_take_those_of_an_owner_away():
    commands = redis_commands(owner_limits("organisation", "bigco", KeyLimits()))
    assert [command[0] for command in commands] == ["DEL", "DEL"]


@pytest.mark.parametrize(
    ("level", "name"), [("organisation", "a/b"), ("tenant", "a b"), ("tenant", ""), ("user", "a")]
)
def test_an_owner_that_cannot_be_is_refused(level, name):
    with pytest.raises(RegistryError):
        owner_limits(level, name, LIMITS)


@pytest.mark.parametrize("model", ["", "a b", "a;b", "a\n"])
def test_a_model_name_that_the_scripts_could_not_find_is_refused(model):
    with pytest.raises(RegistryError):
        owner_limits("tenant", "acme", KeyLimits(by_model={model: ModelLimits()}))


@pytest.mark.parametrize("wrong", [{"budget_cost": 5}, {"cost_period": "day"}])
def test_a_budget_of_money_needs_an_amount_and_a_period(wrong):
    with pytest.raises(ValueError, match="money"):
        KeyLimits(**wrong)


def test_a_key_without_limits_for_models_has_a_line_as_short_as_before():
    assert msgspec.json.encode(KeyLimits(concurrency=2)) == b'{"concurrency":2}'

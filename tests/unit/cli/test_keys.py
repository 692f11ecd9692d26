import argparse
from pathlib import Path

import msgspec
import pytest

from baton.cli.key_homes import LocalKeys
from baton.cli.keys import add_parsers, create_key, last_used, parse_budget, parse_cost
from baton.keys.changes import NewKey
from baton.localstack.home import Home, StackState
from baton.wire import key_registry
from baton.wire.key_limits import KeyLimits
from baton.wire.key_registry import RegistryError
from baton.wire.usage_log import UsageLine


@pytest.mark.parametrize(
    ("text", "expected"), [("", (0, "")), ("5000/day", (5000, "day")), ("1/month", (1, "month"))]
)
def test_budgets_are_tokens_per_utc_window(text: str, expected: tuple[int, str]) -> None:
    assert parse_budget(text) == expected


@pytest.mark.parametrize("text", ["5000", "x/day", "5/week", "0/day", "-1/day"])
def test_a_malformed_budget_is_named(text: str) -> None:
    with pytest.raises(RegistryError, match=text):
        parse_budget(text)


def test_a_key_is_returned_once_and_only_its_digest_is_kept(tmp_path) -> None:
    home = Home(tmp_path)
    api_key = create_key(LocalKeys(home), NewKey("acme", KeyLimits(requests_per_minute=3)))
    assert api_key.startswith("bt-")
    kept = home.registry.read_text()
    assert api_key not in kept
    (record,) = key_registry.read(home.registry).keys.values()
    secret = key_registry.read_secret(home.secret)
    assert record.digest == key_registry.key_digest(secret, api_key).hex()
    assert record.limits.requests_per_minute == 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", (0, "")), ("2.5/day", (2_500_000_000, "day")), ("0.000000001/month", (1, "month"))],
)
def test_a_budget_of_money_is_exact(text: str, expected: tuple[int, str]) -> None:
    assert parse_cost(text) == expected


@pytest.mark.parametrize("text", ["5", "x/day", "5/week", "0/day", "-1/day", "1.0000000001/day"])
def test_a_malformed_budget_of_money_is_named(text: str) -> None:
    with pytest.raises(RegistryError, match=text):
        parse_cost(text)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("BATON_HOME", str(tmp_path))
    return Home.of_environment()


def keys(*words: str) -> int:
    parser = argparse.ArgumentParser()
    add_parsers(parser.add_subparsers(required=True))
    arguments = parser.parse_args(["keys", *words])
    return int(arguments.run(arguments))


def test_limits_of_a_model_are_set_beside_those_of_all_and_taken_away_alone(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    keys("limit", "--organisation", "bigco", "--rpm", "600", "--budget-cost", "250.5/month")
    keys("limit", "--organisation", "bigco", "--model", "large", "--tpm", "5000")
    everything = "organisation=bigco  rpm=600  budget-cost=250.5/month"
    assert capsys.readouterr().out.splitlines()[-1] == f"{everything}  large:tpm=5000"
    keys("limit", "--organisation", "bigco", "--model", "large")
    keys("list")
    assert capsys.readouterr().out.splitlines()[-1] == everything


def test_limits_of_a_key_change_and_the_key_stays(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    keys("create", "--tenant", "bigco/search", "--rpm", "5", "--priority", "2")
    [before] = key_registry.read(home.registry).keys.values()
    keys("limit", "--key", before.key_id, "--concurrency", "3")
    [after] = key_registry.read(home.registry).keys.values()
    assert after.limits == KeyLimits(concurrency=3)
    assert (after.digest, after.priority) == (before.digest, 2)


@pytest.mark.parametrize(
    "words",
    [
        ("--key", "key_unknown"),
        ("--tenant", "a b"),
        ("--organisation", "a/b"),
        ("--tenant", "acme", "--model", "a b", "--rpm", "1"),
        ("--tenant", "acme", "--rpm", "-1"),
        ("--tenant", "acme", "--hard-budget"),
    ],
)
def test_limits_that_cannot_be_are_refused_and_nothing_is_written(
    home: Home, words: tuple[str, ...]
) -> None:
    with pytest.raises(RegistryError):
        keys("limit", *words)
    assert not key_registry.read(home.registry).records()


def test_an_identity_is_registered_without_a_key(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    assert keys("create", "--tenant", "acme", "--identity", "jwt:acme", "--models", "m") == 0
    key_id = capsys.readouterr().out.strip()
    (record,) = key_registry.read(home.registry).keys.values()
    assert (record.key_id, record.tenant, record.allowed_models) == (key_id, "acme", ("m",))
    (secret, *_) = key_registry.read_secrets(home.secret)
    assert bytes.fromhex(record.digest) == key_registry.identity_digest(secret, "jwt:acme")
    assert keys("list") == 0
    shown = capsys.readouterr().out.strip()
    assert shown.startswith(f"{key_id}  jwt:acme  tenant=acme  models=m  made=2")


@pytest.mark.parametrize("identity", ["acme", "jwt:", "ldap:acme", "jwt:" + "x" * 600])
def test_an_identity_without_a_kind_and_a_name_is_refused(home: Home, identity: str) -> None:
    with pytest.raises(RegistryError):
        keys("create", "--tenant", "acme", "--identity", identity)


def test_a_key_for_no_stack_is_refused_unless_a_new_folder_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("BATON_HOME", raising=False)
    monkeypatch.setattr("sys.prefix", str(tmp_path / "elsewhere"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RegistryError, match=r"no stack in .*--home; --new makes one here"):
        keys("create", "--tenant", "lost")
    assert not (tmp_path / ".baton").exists()
    assert keys("create", "--tenant", "early", "--new") == 0
    assert "it counts from the next start" in capsys.readouterr().err
    assert len(key_registry.read(tmp_path / ".baton" / "registry.jsonl").keys) == 1


def test_a_model_that_the_running_stack_does_not_serve_is_refused(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    home.create()
    with home.lock():
        home.write_state(StackState(1, "http://127.0.0.1:1/v1", models=["baton-demo"]))
        with pytest.raises(RegistryError, match="did you mean baton-demo"):
            keys("create", "--tenant", "a", "--models", "baton-dem")
    assert not key_registry.read(home.registry).keys


def test_the_list_says_when_a_key_was_last_used(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    home.create()
    keys("create", "--tenant", "a")
    [record] = key_registry.read(home.registry).keys.values()
    noon_ms = 1_790_000_000_000
    line = UsageLine("a", "req_1", record.key_id, "m", noon_ms, 1, 1, "stop")
    (home.usage / line.file_name).write_bytes(msgspec.json.encode(line) + b"\n")
    assert last_used(home.usage) == {record.key_id: noon_ms / 1000}
    keys("list")
    assert "used=2026-09-2" in capsys.readouterr().out

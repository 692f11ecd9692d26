import hmac
import stat
from hashlib import sha256

import pytest

from baton.wire import key_limits, key_registry
from baton.wire.key_limits import KeyLimits
from baton.wire.key_registry import Entries, KeyRecord, RegistryError, Revocation

SECRET = bytes(range(32))
DAY_BUDGET = KeyLimits(tokens_per_minute=5, budget_tokens=9, budget_period="day")


def new(tenant="acme", **options):
    limits = options.pop("limits", KeyLimits())
    return key_registry.new_key(SECRET, tenant, limits, now_unix_s=1.5, **options)


def test_key_is_256_random_bits_and_its_record_has_only_the_digest():
    key, record = new(limits=DAY_BUDGET, random=lambda n: b"\xff" * n)
    assert key == "bt-" + "_" * 42 + "8"
    assert record.digest == hmac.digest(SECRET, key.encode(), sha256).hex()
    assert record.shown == key[:7]
    assert key[7:] not in repr(record)


def test_two_keys_differ():
    assert new()[0] != new()[0]


@pytest.mark.parametrize(
    "tenant", ["", "a b", "a}", "{a", "a\n", "-a", "x" * 65, "a/", "/a", "a/b/c"]
)
def test_tenant_that_could_leave_its_hash_slot_is_refused(tenant):
    with pytest.raises(RegistryError):
        new(tenant)


@pytest.mark.parametrize("priority", [-1, 256])
def test_priority_out_of_range_is_refused(priority):
    with pytest.raises(RegistryError, match="priority"):
        new(priority=priority)


@pytest.mark.parametrize("weight", [0.0, -1.0, 101.0])
def test_weight_out_of_range_is_refused(weight):
    with pytest.raises(RegistryError, match="weight"):
        new(weight=weight)


def test_budget_without_period_is_refused():
    with pytest.raises(ValueError, match="period"):
        KeyLimits(budget_tokens=5)


def test_what_was_appended_is_read_back_and_revocation_sticks(tmp_path):
    file = tmp_path / "folder" / "registry.jsonl"
    _, first = new(limits=DAY_BUDGET, allowed_models=("demo",))
    _, second = new()
    for entry in (first, second, Revocation(first.key_id, 7), Revocation("unknown", 7)):
        key_registry.append(file, entry)
    records = key_registry.read(file).keys
    assert list(records) == [first.key_id, second.key_id]
    assert records[first.key_id].revoked
    assert records[second.key_id] == second
    assert key_registry.live_keys(records.values()) == [second]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_missing_registry_is_empty(tmp_path):
    assert key_registry.read(tmp_path / "none") == Entries()


def test_unfinished_last_line_is_left_out(tmp_path):
    file = tmp_path / "registry.jsonl"
    key_registry.append(file, new()[1])
    with file.open("ab") as out:
        out.write(b'{"op":"create"')
    assert len(key_registry.read(file).keys) == 1


@pytest.mark.parametrize("line", [b"nonsense", b'{"op":"create"}', b'{"op":"drop"}', b"[1]"])
def test_malformed_line_is_named_by_its_number(tmp_path, line):
    file = tmp_path / "registry.jsonl"
    key_registry.append(file, new()[1])
    with file.open("ab") as out:
        out.write(line + b"\n")
    with pytest.raises(RegistryError, match=r"registry\.jsonl:2"):
        key_registry.read(file)


def test_redis_gets_no_key_and_a_revoked_digest_is_deleted():
    key, record = new(limits=DAY_BUDGET)
    commands = key_registry.redis_commands(record)
    assert key not in str(commands)
    assert [command[0] for command in commands] == ["SADD", "HSET", "SET"]
    revoked = KeyRecord(**{f: getattr(record, f) for f in KeyRecord.__struct_fields__} | {
        "revoked": True
    })  # fmt: skip
    assert [command[0] for command in key_registry.redis_commands(revoked)] == [
        "SADD", "DEL", "SADD", "HSET",
    ]  # fmt: skip


def test_all_keys_of_a_tenants_ledger_share_its_hash_tag():
    assert key_limits.tenant_root("acme") == "baton:{acme}"
    assert key_limits.limits_key("baton:{acme}", "k").startswith("baton:{acme}:")


def test_secret_is_made_once_and_readable_by_its_owner_only(tmp_path):
    file = tmp_path / "folder" / "secret"
    secret = key_registry.ensure_secret(file)
    assert len(secret) == 32
    assert key_registry.ensure_secret(file) == secret == key_registry.read_secret(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["secret"]


def test_older_secrets_stand_below_the_one_in_use(tmp_path):
    file = tmp_path / "secret"
    file.write_text("ab" * 32 + "\n" + "cd" * 32 + "\n")
    assert key_registry.read_secrets(file) == (b"\xab" * 32, b"\xcd" * 32)
    assert key_registry.read_secret(file) == b"\xab" * 32


@pytest.mark.parametrize("text", ["", "zz" * 32, "ab" * 31, "ab" * 32 + "\n" + "cd" * 31])
def test_unusable_secret_is_refused_by_file_name(tmp_path, text):
    file = tmp_path / "secret"
    file.write_text(text)
    with pytest.raises(RegistryError, match="secret"):
        key_registry.read_secret(file)

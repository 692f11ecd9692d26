"""Changes of a registry by several writers at once, in a file and in Secrets."""

import base64
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from baton.keys import changes, homes
from baton.keys.changes import KeyChange, NewKey, UnknownKey
from baton.keys.homes import FileHome, RegistryHome, SecretHome
from baton.keys.secrets import Conflict, Forbidden
from baton.wire import key_registry
from baton.wire.key_limits import KeyLimits
from baton.wire.key_registry import Entries, Line, RegistryError

SECRET = b"s" * 32


class MemorySecrets:
    """Secrets as an API server keeps them. `meanwhile` is called once, before the next write."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}
        self.meanwhile: Callable[[], None] | None = None
        self.num_puts = 0
        self.forbidden: set[str] = set()

    def get(self, name: str) -> Any:
        if name in self.forbidden:
            raise Forbidden(name)
        return self.kept.get(name)

    def put(self, secret: Any) -> None:
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        name = secret["metadata"]["name"]
        live = self.kept.get(name)
        live_version = live and live["metadata"]["resourceVersion"]
        if secret["metadata"].get("resourceVersion") != live_version:
            raise Conflict
        self.num_puts += 1
        metadata = secret["metadata"] | {"resourceVersion": str(self.num_puts)}
        self.kept[name] = secret | {"metadata": metadata}

    def text(self, name: str) -> bytes:
        return base64.b64decode(self.kept[name]["data"]["registry.jsonl"])


@pytest.fixture
def secrets() -> MemorySecrets:
    return MemorySecrets()


@pytest.fixture(params=["file", "secret"])
def home(request: pytest.FixtureRequest, tmp_path: Path, secrets: MemorySecrets) -> RegistryHome:
    if request.param == "file":
        return FileHome(tmp_path / "registry.jsonl")
    return SecretHome(secrets, "baton-keys")


def new_key(home: RegistryHome, tenant: str = "acme", **limits: Any) -> str:
    return changes.create(home, SECRET, NewKey(tenant, KeyLimits(**limits)))[1].key_id


def test_a_key_is_created_updated_and_revoked(home: RegistryHome) -> None:
    key_id = new_key(home, requests_per_minute=3)
    changes.update(home, key_id, KeyChange(priority=7).applied_to)
    [record] = home.read().keys.values()
    assert (record.limits.requests_per_minute, record.priority) == (3, 7)
    assert changes.revoke(home, key_id).revoked
    assert home.read().keys[key_id].revoked


def test_limits_of_owners_are_set_and_taken_away(home: RegistryHome) -> None:
    limits = KeyLimits(concurrency=2)
    changes.set_limits(home, "organisation", "bigco", lambda before: limits)
    assert home.read().limits["organisation:bigco"].limits.concurrency == 2
    changes.set_limits(home, "organisation", "bigco", lambda before: KeyLimits())
    assert home.read().limits["organisation:bigco"].limits == KeyLimits()


def test_what_cannot_be_changed_is_refused_and_nothing_is_written(home: RegistryHome) -> None:
    key_id = new_key(home)
    with pytest.raises(UnknownKey):
        changes.revoke(home, "key_none")
    changes.revoke(home, key_id)
    with pytest.raises(RegistryError, match="is revoked"):
        changes.update(home, key_id, KeyChange(priority=7).applied_to)
    assert home.read().keys[key_id].priority == 0


def test_writers_of_one_file_lose_no_change(tmp_path: Path) -> None:
    home = FileHome(tmp_path / "registry.jsonl")
    key_id = new_key(home)

    def raise_priority() -> None:
        for _ in range(20):
            changes.update(
                home,
                key_id,
                lambda known: msgspec.structs.replace(known, priority=known.priority + 1),
            )

    writers = [threading.Thread(target=raise_priority) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert home.read().keys[key_id].priority == 80


def test_a_change_is_decided_again_if_another_writer_was_first(secrets: MemorySecrets) -> None:
    home = SecretHome(secrets, "baton-keys")
    key_id = new_key(home)
    other = KeyLimits(concurrency=9)
    secrets.meanwhile = lambda: changes.update(home, key_id, KeyChange(other).applied_to) and None
    changes.update(home, key_id, KeyChange(priority=7).applied_to)
    [record] = home.read().keys.values()
    assert (record.limits.concurrency, record.priority) == (9, 7)


def test_a_secret_that_always_changes_ends_with_an_error(secrets: MemorySecrets) -> None:
    home = SecretHome(secrets, "baton-keys")

    def decide(entries: Entries) -> Sequence[Line]:
        secrets.meanwhile = lambda: new_key(SecretHome(secrets, "baton-keys")) and None
        return [key_registry.owner_limits("tenant", "acme", KeyLimits())]

    with pytest.raises(RegistryError, match="all the time"):
        home.change(decide)


def test_a_line_that_a_crash_left_half_written_is_cut_off(tmp_path: Path) -> None:
    home = FileHome(tmp_path / "registry.jsonl")
    first = new_key(home)
    with home.path.open("ab") as file:
        file.write(b'{"op":"create","key')
    second = new_key(home)
    assert list(home.read().keys) == [first, second]


def test_keys_beyond_one_secret_go_into_the_next(
    secrets: MemorySecrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(homes, "MAX_BYTES", 1000)
    home = SecretHome(secrets, "baton-keys")
    made = [new_key(home) for _ in range(10)]
    assert set(secrets.kept) > {"baton-keys", "baton-keys-1", "baton-keys-2"}
    changes.revoke(home, made[0])
    records = home.read().keys
    assert list(records) == made
    assert [key_id for key_id, record in records.items() if record.revoked] == made[:1]


def test_a_secret_is_compacted_before_the_next_one_is_begun(
    secrets: MemorySecrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(homes, "MAX_BYTES", 1000)
    home = SecretHome(secrets, "baton-keys")
    key_id = new_key(home)
    for priority in range(20):
        changes.update(home, key_id, KeyChange(priority=priority).applied_to)
    assert list(secrets.kept) == ["baton-keys"]
    assert home.read().keys[key_id].priority == 19


def test_a_writer_that_saw_no_next_secret_cannot_append_to_the_full_one(
    secrets: MemorySecrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(homes, "MAX_BYTES", 1000)
    home = SecretHome(secrets, "baton-keys")
    made = [new_key(home) for _ in range(3)]

    def fill() -> None:
        made.append(new_key(home, tenant="a-tenant-with-a-name-that-fills-what-is-left-here"))
        changes.update(home, made[0], KeyChange(priority=1).applied_to)

    secrets.meanwhile = fill
    changes.update(home, made[0], KeyChange(weight=2.0).applied_to)
    record = home.read().keys[made[0]]
    assert (record.priority, record.weight) == (1, 2.0)
    assert "baton-keys-1" in secrets.kept


def test_secrets_that_are_there_and_empty_are_filled(
    secrets: MemorySecrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(homes, "MAX_BYTES", 1000)
    for name in ("baton-keys", "baton-keys-1"):
        secrets.put({"kind": "Secret", "metadata": {"name": name}})
    home = SecretHome(secrets, "baton-keys")
    made = [new_key(home) for _ in range(4)]
    assert list(home.read().keys) == made


def test_a_full_registry_says_so(secrets: MemorySecrets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homes, "MAX_BYTES", 1000)
    monkeypatch.setattr(homes, "MAX_SECRETS", 1)
    home = SecretHome(secrets, "baton-keys")
    with pytest.raises(RegistryError, match="full"):
        for _ in range(10):
            new_key(home)
    assert secrets.text("baton-keys").count(b"\n") == len(home.read().keys)


def test_the_quota_service_reads_all_files_of_a_registry_in_order(tmp_path: Path) -> None:
    home = FileHome(tmp_path / "registry.jsonl")
    key_id = new_key(home)
    revocation = key_registry.encode(key_registry.Revocation(key_id, 5))
    (tmp_path / "registry-1.jsonl").write_bytes(revocation)
    assert key_registry.read(home.path).keys[key_id].revoked
    assert [file.name for file in key_registry.files(home.path)] == [
        "registry.jsonl",
        "registry-1.jsonl",
    ]


def test_an_account_that_knows_one_secret_reads_that_one(
    secrets: MemorySecrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(homes, "MAX_BYTES", 1000)
    secrets.forbidden = {"baton-keys-1"}
    home = SecretHome(secrets, "baton-keys")
    made = [new_key(home)]
    monkeypatch.setattr(secrets, "put", _refuse_new(secrets.put))
    with pytest.raises(RegistryError):
        for _ in range(10):
            made.append(new_key(home))
    assert list(home.read().keys) == made


def _refuse_new(put: Callable[[Any], None]) -> Callable[[Any], None]:
    def refusing(secret: Any) -> None:
        if "resourceVersion" not in secret["metadata"]:
            raise RegistryError("may not create")
        put(secret)

    return refusing

"""While Redis is away keys are looked up in the files that have them."""

import msgspec
import pytest

from baton.keys.declared import DeclaredKeys
from baton.wire import failures, key_registry
from baton.wire.key_limits import KeyLimits
from baton.wire.key_registry import Revocation
from services.quota.registry import Registry
from services.quota.revocations import Revocations
from services.quota.store import RedisStore
from tests.unit.quota.conftest import FailingRedis, read_inline

SECRET = b"s" * 32


@pytest.fixture
def client():
    return FailingRedis()


@pytest.fixture
def store(client):
    return RedisStore(client)


@pytest.fixture
def registry(store, tmp_path):
    return registry_of(store, tmp_path)


def registry_of(store, tmp_path, folder=None):
    sources = [(tmp_path / "registry.jsonl", read_inline)]
    return Registry(store, sources, revocations=Revocations(store, folder))


def new_key(tmp_path, tenant="acme", **limits):
    key, record = key_registry.new_key(SECRET, tenant, KeyLimits(**limits), now_unix_s=0)
    key_registry.append(tmp_path / "registry.jsonl", record)
    return key_registry.key_digest(SECRET, key), record


async def test_a_replica_that_starts_without_redis_knows_the_keys_and_all_their_limits(
    registry, client, tmp_path
):
    digest, record = new_key(tmp_path, "org/team", requests_per_minute=3)
    for level, name in (("tenant", "org/team"), ("organisation", "org")):
        limits = KeyLimits(tokens_per_minute=70)
        key_registry.append(
            tmp_path / "registry.jsonl", key_registry.owner_limits(level, name, limits)
        )
    in_redis = await registry.authenticate(digest)
    assert not in_redis.is_from_files
    client.is_away = True
    by_files = await registry_of(RedisStore(client), tmp_path).authenticate(digest)
    assert by_files.is_from_files
    by_files.is_from_files = False
    assert by_files == in_redis
    assert {each.owner for each in by_files.more_limits} == {
        "tenant:org/team",
        "organisation:org",
    }
    assert by_files.key_id == record.key_id


async def test_a_key_that_no_file_has_may_be_in_redis_so_it_is_not_refused(registry, client):
    client.is_away = True
    with pytest.raises(failures.Unavailable) as caught:
        await registry.authenticate(bytes(32))
    assert caught.value.reason == "quota_unavailable"


async def test_a_line_that_comes_while_redis_is_away_counts(registry, client, tmp_path):
    client.is_away = True
    digest, record = new_key(tmp_path)
    assert (await registry.authenticate(digest)).key_id == record.key_id
    key_registry.append(tmp_path / "registry.jsonl", Revocation(record.key_id, 0))
    with pytest.raises(failures.Unavailable):
        await registry.authenticate(digest)


@pytest.mark.parametrize("is_new_life", [False, True])
async def test_what_a_replica_knows_to_be_revoked_is_not_let_in_by_a_file_that_lags(
    client, store, tmp_path, is_new_life
):
    digest, record = new_key(tmp_path)
    registry = registry_of(store, tmp_path, tmp_path / "usage")
    await registry.authenticate(digest)
    client.is_away = True
    with pytest.raises(failures.Unavailable):
        await registry.declare(msgspec.structs.replace(record, revoked=True))
    if is_new_life:
        registry = registry_of(store, tmp_path, tmp_path / "usage")
    with pytest.raises(failures.Unavailable):
        await registry.authenticate(digest)


async def test_declared_keys_are_read_without_telling_redis_what_they_lack(client, store, tmp_path):
    digest, record = new_key(tmp_path)
    client.is_away = True
    declared = DeclaredKeys(store.execute)
    registry = Registry(store, [(tmp_path / "registry.jsonl", declared.read)])
    assert (await registry.authenticate(digest)).key_id == record.key_id


async def test_a_file_that_cannot_be_read_leaves_the_keys_of_the_others(client, store, tmp_path):
    digest, record = new_key(tmp_path)
    (tmp_path / "bad.jsonl").write_text("nonsense\n")
    client.is_away = True
    names = ("registry.jsonl", "bad.jsonl")
    registry = Registry(store, [(tmp_path / name, read_inline) for name in names])
    assert (await registry.authenticate(digest)).key_id == record.key_id

"""Keys that a file declares: they come and go with its lines, and may come back."""

import pytest

from baton.keys.declared import DeclaredKeys
from baton.wire import failures, key_registry
from baton.wire.key_limits import KeyLimits
from services.quota.registry import Registry
from tests.unit.quota.conftest import SECRET, read_inline

LIMITS = KeyLimits(requests_per_minute=3)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "declared.jsonl"


def replica(bench, file):
    """A quota replica that has just started, with the declared keys and the registry."""
    sources = [(bench.file, read_inline), (file, DeclaredKeys(bench.store.execute).read)]
    return Registry(bench.store, sources)


def new_key(tenant="acme"):
    return key_registry.new_key(SECRET, tenant, LIMITS, now_unix_s=0)[1]


def declare(file, *records):
    file.write_bytes(b"".join(map(key_registry.encode, records)))


async def works(registry, record):
    try:
        await registry.authenticate(bytes.fromhex(record.digest))
    except failures.AuthenticationFailed:
        return False
    return True


async def test_a_key_works_while_its_line_is_there(bench, file):
    kept, gone = new_key(), new_key()
    registry = replica(bench, file)
    declare(file, kept, gone)
    assert await works(registry, gone)
    declare(file, kept)
    await registry.refresh()
    assert await works(registry, kept)
    assert not await works(registry, gone)
    with pytest.raises(
        failures.AuthenticationFailed
    ):  # nor with what a gateway still remembers of it
        await bench.reserve(gone, "r1")
    declare(file, gone)
    await registry.refresh()
    assert await works(registry, gone)
    assert not await works(registry, kept)


async def test_a_line_that_went_while_no_quota_ran_is_missed_at_the_next_start(bench, file):
    record = new_key()
    declare(file, record)
    await replica(bench, file).refresh()
    declare(file)
    restarted = replica(bench, file)
    await restarted.refresh()
    assert not await works(restarted, record)


async def test_limits_of_an_owner_go_with_their_line(bench, file):
    declare(file, key_registry.owner_limits("tenant", "acme", LIMITS), new_key())
    registry = replica(bench, file)
    await registry.refresh()
    name = "baton:{acme}:limits:-"
    assert await bench.store.execute("HGET", name, "rpm") == b"3"
    declare(file)
    await registry.refresh()
    assert not await bench.store.execute("EXISTS", name)


async def test_a_line_that_moved_to_the_registry_stays_a_key(bench, file):
    record = new_key()
    declare(file, record)
    registry = replica(bench, file)
    await registry.refresh()
    declare(file)
    key_registry.append(bench.file, record)
    await registry.refresh()
    assert await works(registry, record)


async def test_a_file_that_lags_ends_no_key_when_redis_comes_back_empty(bench, file, tmp_path):
    record = new_key()
    declare(file)
    lagging, ahead = replica(bench, file), replica(bench, tmp_path / "ahead.jsonl")
    await lagging.refresh()
    declare(tmp_path / "ahead.jsonl", record)
    await bench.store.execute("FLUSHALL")
    await ahead.refresh()
    await bench.store.execute("DEL", key_registry.LOADED_KEY)
    await lagging.refresh()
    assert await works(ahead, record)

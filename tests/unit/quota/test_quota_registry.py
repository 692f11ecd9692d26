"""Keys in Redis follow the registry file."""

import asyncio

import msgspec
import pytest

from baton.wire import failures, key_registry
from baton.wire.key_limits import KeyLimits
from baton.wire.key_registry import Revocation
from baton.wire.v1 import quota_pb2
from services.quota.registry import Registry
from services.quota.revocations import Revocations
from tests.unit.quota.conftest import read_inline

SECRET = b"s" * 32


def authenticate(bench, digest):
    return bench.ledger.authenticate(quota_pb2.AuthenticateRequest(key_digest=digest))


def new_key(**options):
    limits = KeyLimits(requests_per_minute=3, budget_tokens=50, budget_period="month")
    return key_registry.new_key(SECRET, "acme", limits, now_unix_s=0, **options)


async def test_key_authenticates_as_its_principal(bench):
    key, record = new_key(allowed_models=("demo",))
    await bench.declare(record)
    principal = await authenticate(bench, key_registry.key_digest(SECRET, key))
    assert (principal.tenant, principal.key_id) == ("acme", record.key_id)
    assert principal.limits.requests_per_minute == 3
    assert principal.limits.budget_period == quota_pb2.BUDGET_PERIOD_MONTH
    assert list(principal.allowed_models) == ["demo"]
    assert principal.fresh_for_s == 5


@pytest.mark.parametrize("digest", [b"", b"x", bytes(range(32))])
async def test_unknown_digest_is_refused(bench, digest):
    with pytest.raises(failures.AuthenticationFailed) as refused:
        await authenticate(bench, digest)
    assert refused.value.reason == "invalid_api_key"


async def test_key_works_as_soon_as_its_line_is_in_the_file(bench):
    await bench.registry.refresh()
    key, record = new_key()
    key_registry.append(bench.file, record)
    await authenticate(bench, key_registry.key_digest(SECRET, key))


async def test_revoked_key_is_refused_after_the_next_look_at_the_file(bench):
    key, record = new_key()
    await bench.declare(record)
    key_registry.append(bench.file, Revocation(record.key_id, 0))
    assert await bench.registry.refresh()
    with pytest.raises(failures.AuthenticationFailed):
        await authenticate(bench, key_registry.key_digest(SECRET, key))


async def test_unchanged_file_is_not_loaded_again(bench):
    await bench.declare(new_key()[1])
    assert not await bench.registry.refresh()


async def test_redis_that_came_back_empty_is_loaded_by_the_call_that_notices(bench):
    key, record = new_key()
    await bench.declare(record)
    await bench.store.execute("FLUSHALL")
    await bench.reserve(record, "r1", prompt=1, output=2)
    await bench.store.execute("FLUSHALL")
    await authenticate(bench, key_registry.key_digest(SECRET, key))
    await bench.store.execute("FLUSHALL")
    await bench.settle(record, "r1", prompt=1, output=2)
    assert await bench.budget(record, "m202701") == (3, 0)


async def test_calls_that_meet_a_load_in_progress_see_its_result(bench):
    key, record = new_key()
    key_registry.append(bench.file, record)
    digest = key_registry.key_digest(SECRET, key)
    principals = await asyncio.gather(*(authenticate(bench, digest) for _ in range(5)))
    assert {principal.key_id for principal in principals} == {record.key_id}
    await bench.store.execute("FLUSHALL")
    grants = await asyncio.gather(*(bench.reserve(record, f"r{n}", 1, 1) for n in range(3)))
    assert len(grants) == 3


async def test_usage_of_an_undeclared_key_is_still_recorded(bench):
    _, record = new_key()
    response = await bench.settle(record, "r1")
    assert not response.repeated_settle
    assert await bench.num_stream_entries() == 1
    assert (await bench.settle(record, "r1")).repeated_settle


async def test_malformed_file_leaves_the_loaded_keys_in_place(bench):
    key, record = new_key()
    await bench.declare(record)
    with bench.file.open("ab") as file:
        file.write(b"nonsense\n")
    assert not await bench.registry.refresh()
    await authenticate(bench, key_registry.key_digest(SECRET, key))


async def test_corrupt_record_of_one_key_is_unavailable_for_that_key_only(bench):
    key, record = new_key()
    await bench.declare(record)
    digest = key_registry.key_digest(SECRET, key)
    await bench.store.execute("SET", key_registry.principal_key(digest), "nonsense")
    with pytest.raises(failures.Unavailable):
        await authenticate(bench, digest)
    other, other_record = new_key()
    await bench.declare(other_record)
    await authenticate(bench, key_registry.key_digest(SECRET, other))


async def test_keys_of_two_files_are_loaded_together(bench, tmp_path):
    (first_key, first), (second_key, second) = new_key(), new_key()
    other_file = tmp_path / "other.jsonl"
    key_registry.append(other_file, first)
    registry = Registry(bench.store, [(other_file, read_inline), (bench.file, read_inline)])
    assert await registry.refresh()
    key_registry.append(bench.file, second)
    assert await registry.refresh()
    for key in (first_key, second_key):
        await registry.authenticate(key_registry.key_digest(SECRET, key))
    assert not await registry.refresh()


class Lagging:
    """A key that one replica's file calls revoked, and the file of another one does not yet."""

    def __init__(self, bench, folder):
        self.bench, self.folder = bench, folder
        self.key, self.record = new_key()
        self.file = folder / "lagging.jsonl"
        key_registry.append(self.file, self.record)

    def replica(self):
        """A replica that starts with the file that lags."""
        kept = Revocations(self.bench.store, self.folder / "archive")
        return Registry(self.bench.store, [(self.file, read_inline)], revocations=kept)

    async def revoke(self):
        await self.bench.declare(self.record)
        key_registry.append(self.bench.file, Revocation(self.record.key_id, 0))
        await self.bench.registry.refresh()

    async def works(self, registry):
        try:
            await registry.authenticate(bytes.fromhex(self.record.digest))
        except failures.AuthenticationFailed:
            return False
        return True


@pytest.fixture
def lagging(bench, tmp_path):
    return Lagging(bench, tmp_path)


async def test_a_replica_that_starts_with_a_file_that_lags_brings_no_revoked_key_back(lagging):
    await lagging.revoke()
    assert await lagging.replica().refresh()
    assert not await lagging.works(lagging.bench.registry)
    name = f"baton:{{acme}}:limits:{lagging.record.key_id}"
    assert await lagging.bench.store.execute("HGET", name, "revoked") == b"1"


async def test_a_revoked_key_stays_revoked_when_redis_comes_back_empty(lagging):
    replica = lagging.replica()
    await replica.refresh()
    assert await lagging.works(replica)
    await lagging.revoke()
    await replica.refresh()
    await lagging.bench.store.execute("FLUSHALL")
    assert not await lagging.works(replica)
    await lagging.bench.store.execute("FLUSHALL")
    restarted = lagging.replica()
    assert not await lagging.works(restarted)
    with (lagging.folder / "archive" / "revoked-keys").open("a") as torn:
        torn.write("0123")
    await lagging.bench.store.execute("FLUSHALL")
    assert not await lagging.works(lagging.replica())


async def test_a_replica_that_knows_a_revocation_gives_it_back_to_redis(lagging):
    await lagging.revoke()
    await lagging.bench.store.execute("DEL", key_registry.REVOKED_KEY)
    unaware = Registry(lagging.bench.store, [(lagging.file, read_inline)])
    assert await lagging.works(unaware)
    await lagging.bench.registry.refresh()
    assert not await lagging.works(unaware)


async def test_a_revocation_while_redis_is_away_holds_when_it_comes_back_empty(lagging):
    replica = lagging.replica()
    await replica.refresh()
    revoked = msgspec.structs.replace(lagging.record, revoked=True)
    execute, lagging.bench.store.execute = lagging.bench.store.execute, gone
    with pytest.raises(failures.Unavailable):
        await replica.declare(revoked)
    lagging.bench.store.execute = execute
    await lagging.bench.store.execute("FLUSHALL")
    assert not await lagging.works(replica)


async def gone(*command):
    raise failures.Unavailable("gone")

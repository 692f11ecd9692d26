"""Another server under the store's address: what it may lack is brought there again."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from baton.testing.redis_server import RedisDouble
from baton.wire import failures, key_registry
from baton.wire.key_registry import KeyLimits, KeyRecord, Revocation
from baton.wire.v1 import quota_pb2
from services.quota.ledger import LeaseTerms, Ledger
from services.quota.recent_settles import KEPT_S, RecentSettles
from services.quota.registry import Registry
from services.quota.store import RedisStore
from tests.unit.quota.conftest import START_MS, read_inline

SECRET = b"s" * 32


@dataclass
class Bench:
    """A ledger over a double whose state can fall back to that of an earlier copy."""

    client: RedisDouble
    store: RedisStore
    registry: Registry
    ledger: Ledger
    settles: RecentSettles
    file: Path
    now_s: list[float]

    async def new_key(self, **limits: object) -> tuple[str, KeyRecord]:
        key, record = key_registry.new_key(
            SECRET,
            "acme",
            KeyLimits(**limits),  # type: ignore[arg-type]
            now_unix_s=1,
        )
        key_registry.append(self.file, record)
        await self.registry.refresh()
        return key, record

    async def knows(self, key: str) -> bool:
        digest = key_registry.key_digest(SECRET, key)
        try:
            await self.ledger.authenticate(quota_pb2.AuthenticateRequest(key_digest=digest))
        except failures.AuthenticationFailed:
            return False
        return True

    async def finish(self, record: KeyRecord, request_id: str) -> None:
        usage = quota_pb2.UsageRecord(
            request_id=request_id,
            tenant=record.tenant,
            key_id=record.key_id,
            num_prompt_tokens=10,
            num_output_tokens=20,
        )
        await self.settles.settle(quota_pb2.SettleRequest(usage=usage))

    async def copy(self) -> dict[bytes, bytes]:
        names = await self.client.keys("*")
        return {name: await self.client.dump(name) for name in names}

    async def fail_over(self, copy: dict[bytes, bytes]) -> None:
        """A replica with an older copy is promoted."""
        await self.client.flushall()
        for name, value in copy.items():
            await self.client.restore(name, 0, value)
        self.client.run_id += "'"

    async def num_waiting(self) -> int:
        return int(await self.store.execute("XLEN", "baton:{acme}:usage"))


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    client = RedisDouble()
    store = RedisStore(client)
    file = tmp_path / "registry.jsonl"
    registry = Registry(store, [(file, read_inline)])
    terms = LeaseTerms(lease_s=30, settled_kept_s=3600)
    ledger = Ledger(store, registry, terms, clock_ms=lambda: START_MS)
    now_s = [100.0]
    settles = RecentSettles(ledger, store, lambda: now_s[0])
    await settles.follow()
    yield Bench(client, store, registry, ledger, settles, file, now_s)
    await store.close()


async def test_keys_made_and_revoked_after_the_copy_are_as_the_registry_says(bench: Bench) -> None:
    revoked, record = await bench.new_key()
    copy = await bench.copy()
    late, _ = await bench.new_key()
    key_registry.append(bench.file, Revocation(record.key_id, 2))
    await bench.registry.refresh()
    await bench.fail_over(copy)
    await bench.registry.refresh()
    assert await bench.knows(late)
    assert not await bench.knows(revoked)


async def test_a_key_that_the_copy_lacks_works_at_its_first_request(bench: Bench) -> None:
    await bench.new_key()
    copy = await bench.copy()
    late, _ = await bench.new_key()
    await bench.fail_over(copy)
    assert await bench.knows(late)


async def test_an_acknowledged_bill_that_the_copy_lacks_is_written_again(bench: Bench) -> None:
    _, record = await bench.new_key()
    await bench.finish(record, "before")
    copy = await bench.copy()
    await bench.finish(record, "after")
    await bench.fail_over(copy)
    assert await bench.num_waiting() == 1
    await bench.settles.follow()
    assert await bench.num_waiting() == 2
    await bench.settles.follow()
    assert await bench.num_waiting() == 2


async def test_a_bill_is_kept_for_as_long_as_the_archiver_may_need(bench: Bench) -> None:
    _, record = await bench.new_key()
    copy = await bench.copy()
    await bench.finish(record, "r1")
    bench.now_s[0] += KEPT_S + 1
    await bench.settles.follow()
    await bench.fail_over(copy)
    await bench.settles.follow()
    assert await bench.num_waiting() == 0


async def test_leases_that_come_back_with_the_copy_lapse_although_nobody_asks(bench: Bench) -> None:
    await bench.new_key()
    copy = await bench.copy()
    await bench.fail_over(copy)
    await bench.settles.follow()
    assert await bench.store.execute("ZSCORE", "baton:agenda", "acme") == 0

"""The ledger runs in process, on virtual time, as the fleet simulation uses it."""

import asyncio
from pathlib import Path

import pytest

from baton.testing.redis_server import RedisDouble
from baton.testing.virtual_clock import VirtualClock, run_virtual
from baton.wire import failures, key_registry
from baton.wire.key_limits import KeyLimits
from baton.wire.v1 import quota_pb2
from services.quota.ledger import Ledger
from services.quota.registry import Registry
from services.quota.store import RedisStore
from services.quota.upkeep import keep_reaping


async def read_inline(path: Path) -> key_registry.Entries:
    return key_registry.read(path)


def test_buckets_and_leases_follow_the_virtual_clock(tmp_path):
    clock = VirtualClock()
    file = tmp_path / "registry.jsonl"
    limits = KeyLimits(tokens_per_minute=600, concurrency=1)
    _, record = key_registry.new_key(b"s" * 32, "acme", limits, now_unix_s=clock.unix())
    key_registry.append(file, record)

    def request(request_id: str) -> quota_pb2.ReserveRequest:
        return quota_pb2.ReserveRequest(
            request_id=request_id, tenant="acme", key_id=record.key_id, num_output_tokens=600
        )

    async def main() -> None:
        store = RedisStore(RedisDouble())
        registry = Registry(store, [(file, read_inline)])
        ledger = Ledger(store, registry, clock_ms=lambda: round(clock.unix() * 1000))
        async with asyncio.TaskGroup() as tasks:
            stopping = asyncio.Event()
            tasks.create_task(keep_reaping(ledger, 2.0, 600.0, stopping))
            await ledger.reserve(request("r1"))
            await asyncio.sleep(35)
            with pytest.raises(failures.LimitExceeded) as refused:
                await ledger.reserve(request("r2"))
            await asyncio.sleep(refused.value.retry_after_s)
            await ledger.reserve(request("r2"))
            stopping.set()
        await store.close()
        assert 60 <= clock.now() < 61

    run_virtual(main(), clock)

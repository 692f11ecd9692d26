"""What a finished request leaves in a real Redis-compatible server."""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from baton.runtime.redis_connections import connect
from baton.testing.redis_server import RedisServer
from baton.wire import key_registry
from baton.wire.key_limits import KeyLimits
from baton.wire.v1 import failure_pb2, quota_pb2
from services.quota.archive import Archiver
from services.quota.ledger import Ledger
from services.quota.registry import Registry
from services.quota.store import RedisStore

NUM_REQUESTS = 4000
MAX_BYTES = 60


@pytest.fixture
def folder():
    with TemporaryDirectory(prefix="baton-") as name:
        yield Path(name)


async def used_bytes(store: RedisStore) -> int:
    info = await store.execute("INFO", "memory")
    return int(info["used_memory"])


async def test_at_most_60_bytes_of_a_request_stay_after_archiving(folder):
    _, record = key_registry.new_key(b"s" * 32, "acme", KeyLimits(), now_unix_s=0)
    with RedisServer(folder) as server:
        store = RedisStore(connect(server.url, 60.0, 8))
        # On a busy machine its log of slow commands would hold more than the requests do.
        await store.execute("CONFIG", "SET", "slowlog-log-slower-than", "-1")
        await store.execute_all(key_registry.redis_commands(record))
        ledger = Ledger(store, Registry(store, []))
        archiver = Archiver(store, folder / "usage", token="a")

        async def finish(number: int) -> None:
            names = {"tenant": "acme", "key_id": record.key_id, "model": "a-model"}
            request_id = f"request-{number:08d}.0123456789abcdef"
            await ledger.reserve(
                quota_pb2.ReserveRequest(request_id=request_id, num_output_tokens=512, **names)
            )
            stages = [failure_pb2.StageTime(name=f"s{i}", duration_us=i) for i in range(12)]
            usage = quota_pb2.UsageRecord(request_id=request_id, stages=stages, **names)
            await ledger.settle(quota_pb2.SettleRequest(usage=usage))

        await finish(0)
        await archiver.archive_all()
        before = await used_bytes(store)
        for start in range(1, NUM_REQUESTS + 1, 8):
            await asyncio.gather(*(finish(number) for number in range(start, start + 8)))
        archiver.wake("acme")
        await archiver.archive_all()
        assert (await used_bytes(store) - before) / NUM_REQUESTS <= MAX_BYTES
        await store.close()

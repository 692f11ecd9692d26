"""A ledger over an in-process Redis double, with a clock that the test moves."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from baton.testing.redis_server import RedisDouble
from baton.wire import key_registry
from baton.wire.key_limits import KeyLimits, OwnerLimits
from baton.wire.key_registry import Entries, KeyRecord
from baton.wire.v1 import quota_pb2
from services.quota.ledger import LeaseTerms, Ledger
from services.quota.registry import Registry
from services.quota.store import RedisStore
from services.quota.tenant_meter import TenantMeter

SECRET = b"s" * 32
# 2027-01-15 08:00:00 UTC, a Friday.
START_MS = 1_800_000_000_000


class FailingRedis(RedisDouble):
    """A Redis that can be away."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = False

    async def execute_command(self, *arguments: Any, **options: Any) -> Any:
        if self.is_away:
            raise RedisConnectionError("away")
        return await super().execute_command(*arguments, **options)


async def read_inline(path: Path) -> Entries:
    return key_registry.read(path)


@dataclass
class QuotaBench:
    """Ledger, store, registry file and clock of one test, with short words for common steps."""

    ledger: Ledger
    registry: Registry
    store: RedisStore
    file: Path
    now_ms: list[int]
    # Called with each tenant whose usage records may wait.
    listeners: list[Callable[[str], None]] = field(default_factory=list)

    def pass_time(self, seconds: float) -> None:
        self.now_ms[0] += round(seconds * 1000)

    async def new_tenants(self, *tenants: str) -> list[KeyRecord]:
        """One key each, which the registry reads all at once."""
        records = [
            key_registry.new_key(SECRET, tenant, KeyLimits(), now_unix_s=START_MS / 1000)[1]
            for tenant in tenants
        ]
        for record in records:
            key_registry.append(self.file, record)
        await self.registry.refresh()
        return records

    async def new_key(self, tenant: str = "acme", **limits: object) -> KeyRecord:
        _, record = key_registry.new_key(
            SECRET,
            tenant,
            KeyLimits(**limits),  # type: ignore[arg-type]
            now_unix_s=START_MS / 1000,
        )
        await self.declare(record)
        return record

    async def limit(
        self, level: str, name: str, by_model: dict[str, object] | None = None, **limits: object
    ) -> None:
        """Set the limits of a tenant or an organisation."""
        parts = {"by_model": by_model or {}} | limits
        await self.declare(
            key_registry.owner_limits(level, name, KeyLimits(**parts))  # type: ignore[arg-type]
        )

    async def declare(self, record: KeyRecord | OwnerLimits) -> None:
        key_registry.append(self.file, record)
        await self.registry.refresh()

    async def reserve(
        self, key: KeyRecord, request_id: str, prompt: int = 10, output: int = 90
    ) -> quota_pb2.ReserveResponse:
        return await self.ledger.reserve(
            quota_pb2.ReserveRequest(
                request_id=request_id,
                tenant=key.tenant,
                key_id=key.key_id,
                model="m",
                num_prompt_tokens=prompt,
                num_output_tokens=output,
            )
        )

    async def renew(
        self, key: KeyRecord, request_id: str, used: int = 0, wanted: int = 0, produced: int = 0
    ) -> quota_pb2.LeaseState:
        renewal = quota_pb2.LeaseRenewal(
            request_id=request_id,
            tenant=key.tenant,
            used_output_tokens=used,
            wanted_output_tokens=wanted,
            produced_output_tokens=produced,
        )
        response = await self.ledger.renew(quota_pb2.RenewRequest(leases=[renewal]))
        return response.leases[0]

    async def settle(
        self, key: KeyRecord, request_id: str, prompt: int = 10, output: int = 20, tenant: str = ""
    ) -> quota_pb2.SettleResponse:
        usage = quota_pb2.UsageRecord(
            request_id=request_id,
            tenant=tenant or key.tenant,
            key_id=key.key_id,
            model="m",
            num_prompt_tokens=prompt,
            num_output_tokens=output,
            finish_reason="stop",
        )
        return await self.ledger.settle(quota_pb2.SettleRequest(usage=usage))

    async def budget(self, key: KeyRecord, window: str = "d20270115") -> tuple[int, int]:
        """(spent, held) of a window."""
        spent, held = await self.store.execute(
            "HMGET", f"baton:{{{key.tenant}}}:budget:{key.key_id}:{window}", "spent", "held"
        )
        return int(spent or 0), int(held or 0)

    async def slots(self, key: KeyRecord) -> int:
        account = f"baton:{{{key.tenant}}}:account:{key.key_id}"
        return int(await self.store.execute("HGET", account, "slots") or 0)

    async def left(self, key: KeyRecord) -> tuple[int, int]:
        """The tokens and the requests that the key's minute had left at its last change."""
        account = f"baton:{{{key.tenant}}}:account:{key.key_id}"
        levels = await self.store.execute("HMGET", account, "tokens", "requests")
        tokens, requests = (max(0, int(level or 0) // 60_000) for level in levels)
        return tokens, requests

    async def num_stream_entries(self, tenant: str = "acme") -> int:
        return int(await self.store.execute("XLEN", f"baton:{{{tenant}}}:usage"))


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[QuotaBench]:
    client = RedisDouble()
    store = RedisStore(client)
    file = tmp_path / "registry.jsonl"
    registry = Registry(store, [(file, read_inline)])
    now_ms = [START_MS]
    listeners: list[Callable[[str], None]] = []

    def tell(tenant: str) -> None:
        for listener in listeners:
            listener(tenant)

    ledger = Ledger(
        store,
        registry,
        LeaseTerms(lease_s=30, settled_kept_s=3600),
        on_settled=tell,
        meter=TenantMeter(max_tenants=100),
        clock_ms=lambda: now_ms[0],
    )
    yield QuotaBench(ledger, registry, store, file, now_ms, listeners)
    await store.close()

"""What the quota service does by itself: lapse expired leases, keep the registry loaded.

Both wait out an outage of Redis: the next turn tries again.
"""

import asyncio

from baton.runtime import logs
from baton.wire.failures import Unavailable
from services.quota.ledger import Ledger
from services.quota.registry import Registry

_log = logs.get("quota.upkeep")


async def keep_reaping(ledger: Ledger, interval_s: float) -> None:
    """Lapse expired leases every `interval_s`, until cancelled. Reserving and renewing lapse the
    leases of their tenant, too; this serves tenants that do neither."""
    while True:
        await asyncio.sleep(interval_s)
        try:
            num_reaped = await ledger.reap()
        except Unavailable:
            continue
        if num_reaped:
            _log.info("leases_lapsed", num_leases=num_reaped)


async def keep_registry_loaded(registry: Registry, interval_s: float) -> None:
    """Load the registry at once, then whenever it changed or Redis came back empty."""
    while True:
        try:
            await registry.refresh()
        except Unavailable:
            _log.warning("registry_waits", why="redis")
        await asyncio.sleep(interval_s)

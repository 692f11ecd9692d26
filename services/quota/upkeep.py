"""The periodic work of the quota service: lapse expired leases, keep registry and prices loaded.

Both try again after an outage of Redis. They end by an event, not by cancellation: Python 3.11's
`wait_for`, with which the Redis client sends, can lose a cancellation that comes while the send
finishes (python/cpython#86296).
"""

import asyncio
from collections.abc import Awaitable, Callable

from baton.runtime import logs
from baton.wire.failures import Unavailable
from services.quota.ledger import Ledger
from services.quota.prices import Prices
from services.quota.registry import Registry

_log = logs.get("quota.upkeep")


async def keep_reaping(
    ledger: Ledger, interval_s: float, look_at_all_s: float, stopping: asyncio.Event
) -> None:
    """Lapse expired leases every `interval_s`; look at every tenant at once and every
    `look_at_all_s`.

    Each reserve and renew lapses the leases of its tenant, too; this is for the other tenants.
    """
    rounds_between = max(1, round(look_at_all_s / interval_s))
    rounds_left = 0

    async def reap() -> None:
        nonlocal rounds_left
        if not rounds_left:
            await ledger.look_at_all()
            rounds_left = rounds_between
        rounds_left -= 1
        num_reaped = await ledger.reap()
        if num_reaped:
            _log.info("leases_lapsed", num_leases=num_reaped)

    await every(interval_s, reap, stopping)


async def keep_files_loaded(
    registry: Registry, prices: Prices, interval_s: float, stopping: asyncio.Event
) -> None:
    """Load the registry at once, then whenever it changed or Redis came back empty; load the price
    list whenever it changed."""

    async def refresh() -> None:
        await prices.refresh()
        await registry.refresh()

    await every(interval_s, refresh, stopping)


async def every(
    interval_s: float, work: Callable[[], Awaitable[None]], stopping: asyncio.Event
) -> None:
    """Do `work` now and then every `interval_s` until `stopping`."""
    while not stopping.is_set():
        try:
            await work()
        except Unavailable:
            _log.warning("upkeep_waits", why="redis")
        try:
            async with asyncio.timeout(interval_s):
                await stopping.wait()
        except TimeoutError:
            continue

"""How soon routers tell each other: at once where room is short, else now and then."""

import asyncio
from typing import Any

import pytest

from baton.testing.virtual_clock import run_virtual
from baton.wire.v1 import peers_pb2
from services.router.peers.news import LINES_S, QUIET_S

NUM_WORKERS = 40
PLENTY, SHORT = {}, {"num_running": 3}
NUM_PICKS, QUICKLY_S, SLOWLY_S = 60, 0.004, 0.02


async def messages(core: Any, told: list[peers_pb2.PeerNews]) -> None:
    async for news in core.follow_news():
        told.append(news)


async def news_of_picks(
    fleet: Any, num_workers: int, load: dict[str, int], every_s: float
) -> list[int]:
    """Pick again and again; returns the numbers of requests of the messages about it."""
    workers = {f"d{number}": fleet.decode(f"d{number}") for number in range(num_workers)}
    for worker in workers.values():
        worker.load(**load)
    told: list[peers_pb2.PeerNews] = []
    following = asyncio.create_task(messages(fleet.core, told))
    for number in range(NUM_PICKS):
        await asyncio.sleep(every_s)
        picked = await fleet.pick(f"r{number}")
        workers[picked.decode.worker_id].load(f"r{number}", **load)
    await asyncio.sleep(LINES_S)
    fleet.core.close()
    await following
    return [
        sum(len(event.placed.request_ids) for event in each.events) for each in told if each.events
    ]


@pytest.mark.parametrize(
    ("num_workers", "load", "every_s", "is_together"),
    [
        (NUM_WORKERS, PLENTY, QUICKLY_S, True),
        (NUM_WORKERS, PLENTY, SLOWLY_S, False),
        (NUM_WORKERS, SHORT, QUICKLY_S, False),
        (10, PLENTY, QUICKLY_S, False),
    ],
)
def test_many_events_leave_together_while_a_large_pool_has_plenty_of_room(
    router, clock, num_workers: int, load: dict[str, int], every_s: float, is_together: bool
) -> None:
    async def scenario() -> None:
        fleet = router(peers=("a:1", "b:1"), stale_after_s=60)
        counts = await news_of_picks(fleet, num_workers, load, every_s)
        assert sum(counts) == NUM_PICKS
        assert (max(counts) > LINES_S / QUICKLY_S / 2) == is_together

    run_virtual(scenario(), clock)


@pytest.mark.parametrize("is_waiting", [True, False])
def test_a_line_at_a_peer_hastens_the_news(router, clock, is_waiting: bool) -> None:
    async def scenario() -> None:
        fleet = router(peers=("a:1", "b:1"), stale_after_s=60)
        tenants = [peers_pb2.WaitingTenant(tenant="x", weight=1.0)] if is_waiting else []
        line = peers_pb2.PeerLine(model_fp="fp-1", tenants=tenants)
        lines = peers_pb2.PeerLines(lines=[line])
        fleet.core.take_news("b", peers_pb2.PeerNews(lines=lines))
        counts = await news_of_picks(fleet, NUM_WORKERS, PLENTY, QUICKLY_S)
        assert (max(counts) <= LINES_S / QUICKLY_S / 2) == is_waiting

    run_virtual(scenario(), clock)


@pytest.mark.parametrize("is_waiting", [True, False])
def test_lines_are_told_often_while_anybody_waits(router, clock, is_waiting: bool) -> None:
    async def scenario() -> None:
        fleet = router(peers=("a:1", "b:1"), stale_after_s=60, no_worker_wait_s=60)
        fleet.prefill()
        told: list[peers_pb2.PeerNews] = []
        following = asyncio.create_task(messages(fleet.core, told))
        picking = asyncio.create_task(fleet.pick("r")) if is_waiting else None
        await asyncio.sleep(0.1)
        told.clear()
        await asyncio.sleep(2.0)
        every_s = LINES_S if is_waiting else QUIET_S
        assert 2.0 / every_s - 1 <= len(told) <= 2.0 / every_s + 1
        assert all(bool(each.lines.lines) == is_waiting for each in told)
        if picking is not None:
            picking.cancel()
        fleet.core.close()
        await following

    run_virtual(scenario(), clock)

"""Two routers that pick for the same workers, and tell each other what they give away."""

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from baton.runtime.discovery.discover import FixedMembers
from baton.testing.virtual_clock import run_virtual
from baton.wire.failures import InvalidRequest, Overloaded
from baton.wire.v1 import peers_pb2, router_pb2
from services.router.fleet.worker import SlotLease
from services.router.peers import news as news_module
from services.router.queue.fair_line import Turn
from services.router.watcher import PeerWatcher
from tests.unit.router.peers.told import news_of, placed

BUSY = {"num_running": 4}


class NewsStream:
    """The news of a router, over a stream in memory."""

    def __init__(self, core: Any) -> None:
        self._news = core.follow_news()
        self._reading: asyncio.Task[Any] | None = None
        self.is_cut = False

    async def read(self) -> peers_pb2.PeerNews | None:
        if self.is_cut:
            return None
        self._reading = asyncio.ensure_future(anext(self._news, None))
        try:
            news = await self._reading
        except asyncio.CancelledError:
            if not self.is_cut:
                raise
            return None
        return None if news is None else peers_pb2.PeerNews.FromString(news.SerializeToString())

    def cancel(self) -> None:
        self.is_cut = True
        if self._reading is not None:
            self._reading.cancel()

    async def close(self) -> None:
        await self._news.aclose()


class Pair:
    """Routers a and b that know the same workers and follow each other."""

    def __init__(self, router: Callable[..., Any], **settings: Any) -> None:
        addresses = ("a:1", "b:1")
        self.routers = {
            address: router(router_id=address[0], peers=addresses, **settings)
            for address in addresses
        }
        self.a, self.b = self.routers.values()
        self.streams: list[NewsStream] = []
        self.num_dials: Counter[str] = Counter()

    def dial(self, address: str) -> NewsStream:
        self.num_dials[address] += 1
        self.streams.append(NewsStream(self.routers[address].core))
        return self.streams[-1]

    def watchers(self) -> list[Awaitable[None]]:
        return [
            PeerWatcher(each.core, address[0], self.dial, Random(1)).run(FixedMembers(self.routers))
            for address, each in self.routers.items()
        ]

    def start(self, kind: str, *names: str) -> list[list[Any]]:
        """Workers that report to both routers: of each one, its two sides."""
        return [[getattr(each, kind)(name) for each in (self.a, self.b)] for name in names]

    async def pick(self, number: int, **fields: Any) -> router_pb2.PickResponse:
        each = (self.a, self.b)[number % 2]
        response: router_pb2.PickResponse = await each.pick(f"r{number}", **fields)
        await asyncio.sleep(0.03)
        return response


@pytest.fixture
def paired(router, clock) -> Callable[..., None]:
    def run(scenario: Callable[[Pair], Awaitable[None]], **settings: Any) -> None:
        async def main() -> None:
            pair = Pair(router, **settings)
            async with asyncio.TaskGroup() as tasks:
                watching = [tasks.create_task(watch) for watch in pair.watchers()]
                await asyncio.sleep(0.1)
                await scenario(pair)
                for task in watching:
                    task.cancel()

        run_virtual(main(), clock)

    return run


def test_two_routers_do_not_give_the_same_room_away(paired) -> None:
    async def scenario(pair: Pair) -> None:
        pair.start("decode", "d0", "d1")
        picked = [await pair.pick(number) for number in range(8)]
        assert Counter(p.decode.worker_id for p in picked) == {"d0": 4, "d1": 4}
        with pytest.raises(Overloaded):
            await pair.pick(8, timeout_s=0.1)

    paired(scenario)


def test_a_pick_that_is_told_later_than_its_worker_reports_it_holds_no_room(paired) -> None:
    """As the news of a router in another zone."""

    async def scenario(pair: Pair) -> None:
        [(_, worker_of_b)] = pair.start("decode", "d0")
        for number in range(4):
            await pair.a.pick(f"r{number}")
            worker_of_b.load(f"r{number}")
        await asyncio.sleep(0.1)
        await pair.b.pick("r9")
        assert len(pair.b.core._fleet.find("d0").leases) == 1

    paired(scenario)


def test_a_request_that_is_picked_again_elsewhere_is_on_its_way_once(paired) -> None:
    async def scenario(pair: Pair) -> None:
        pair.start("decode", "d0")
        for number in range(4):
            await pair.pick(number)
        for each in (pair.a, pair.b):
            await each.pick("r0", exclude_worker_ids=["d9"])
            await asyncio.sleep(0.03)
        with pytest.raises(Overloaded):
            await pair.pick(5, timeout_s=0.1)

    paired(scenario)


def test_a_request_that_left_leaves_its_room_to_the_other_router(paired) -> None:
    async def scenario(pair: Pair) -> None:
        pair.start("decode", "d0")
        for number in range(4):
            await pair.pick(number)
        with pytest.raises(InvalidRequest):  # the repeated pick asks for more than there is
            await pair.a.pick("r0", num_prompt_tokens=100_000)
        await asyncio.sleep(0.03)
        assert (await pair.pick(5)).decode.worker_id == "d0"

    paired(scenario)


def test_a_prompt_on_its_way_draws_its_like_from_the_other_router(paired, hashes) -> None:
    async def scenario(pair: Pair) -> None:
        workers = pair.start("decode", "d0", "d1")
        prompt = {"num_prompt_tokens": 1024, "block_hashes": hashes(*range(64))}
        first = await pair.pick(0, **prompt)
        for sides in workers:
            for side in sides:
                side.load("r0")
        second = await pair.pick(1, **prompt)
        assert second.decode.worker_id == first.decode.worker_id
        assert second.predicted_cached_tokens >= 512

    paired(scenario)


def test_what_a_tenant_has_had_at_one_router_counts_at_the_other(paired) -> None:
    async def scenario(pair: Pair) -> None:
        [sides] = pair.start("decode", "d0")
        for side in sides:
            side.load(**BUSY)
        order: list[str] = []

        async def ask(tenant: str, number: int) -> None:
            await pair.b.pick(f"{tenant}-{number}", tenant=tenant)
            order.append(tenant)

        async with asyncio.TaskGroup() as tasks:
            for number in range(2):
                for tenant in ("loud", "quiet"):
                    tasks.create_task(ask(tenant, number))
                    await asyncio.sleep(0.03)
            had = placed("a-1", turn=Turn("loud"), service_s=9.0)
            pair.b.core.take_news("a", news_of(had))
            for num_running in (3, 2, 1, 0):
                for side in sides:
                    side.load(num_running=num_running)
                await asyncio.sleep(2.1)
        assert order[:2] == ["quiet", "quiet"]

    paired(scenario, stale_after_s=60.0)


def test_failures_that_two_routers_were_told_of_eject_a_worker_at_both(paired) -> None:
    async def scenario(pair: Pair) -> None:
        workers = pair.start("decode", "d0", "d1", "d2")
        for number in range(4):
            await pair.pick(number, exclude_worker_ids=["d2"], has_failed=True)
            for sides in workers:
                for side in sides:
                    side.load()
            await asyncio.sleep(1.0)
        for each in (pair.a, pair.b):
            each.core.check_health(0.25)
            states = {w.worker_id: w for m in each.core.admission().models for w in m.workers}
            assert states["d2"].ejected

    paired(scenario)


def test_a_suspect_of_one_router_is_a_suspect_of_the_other_until_it_is_cleared(paired) -> None:
    async def scenario(pair: Pair) -> None:
        pair.start("decode", "d0")
        like = {"poison_fingerprint": b"p"}
        assert (await pair.pick(0, num_deaths=1, **like)).is_suspect
        assert (await pair.pick(1, **like)).is_suspect
        await pair.pick(2, harmless_fingerprints=[b"p"])
        assert not (await pair.pick(3, **like)).is_suspect

    paired(scenario)


def test_the_retry_budget_is_that_of_the_fleet(paired) -> None:
    async def scenario(pair: Pair) -> None:
        pair.start("decode", "d0")
        news = peers_pb2.PeerNews(
            events=[peers_pb2.PeerEvent(failed=peers_pb2.FailedAttempt(worker_id="d0"))] * 300
        )
        pair.a.core.take_news("b", news)
        with pytest.raises(Overloaded, match="failed too many"):
            await pair.pick(0, exclude_worker_ids=["d9"], has_failed=True)
        first = [placed(f"x{number}", is_first=True) for number in range(10)]
        pair.a.core.take_news("b", news_of(*first))
        await pair.pick(0, exclude_worker_ids=["d9"], has_failed=True)

    paired(scenario)


def test_a_line_at_one_router_is_not_passed_at_the_other(paired) -> None:
    async def scenario(pair: Pair) -> None:
        [sides] = pair.start("decode", "d0")
        for side in sides:
            side.load(**BUSY)
        granted: list[str] = []

        async def ask(each: Any, tenant: str, number: int) -> None:
            await each.pick(f"{tenant}-{number}", tenant=tenant)
            granted.append(tenant)

        async with asyncio.TaskGroup() as tasks:
            for number in range(20):
                tasks.create_task(ask(pair.a, "x", number))
                tasks.create_task(ask(pair.b, "x", 100 + number))
                tasks.create_task(ask(pair.b, "y", number))
            await asyncio.sleep(0.2)
            for turn in range(100):
                for side in sides:
                    side.load(num_running=3, step_counter=64 * turn)
                await asyncio.sleep(0.03)
                for side in sides:
                    side.load(*_all_ids(), step_counter=64 * turn, **BUSY)
                await asyncio.sleep(0.07)
        early = Counter(granted[:30])
        assert 12 <= early["x"] <= 18, early

    paired(scenario, stale_after_s=60.0)


def _all_ids() -> list[str]:
    return [f"{tenant}-{number}" for tenant in "xy" for number in range(120)]


def test_a_router_that_comes_later_learns_what_is_on_its_way(paired) -> None:
    async def scenario(pair: Pair) -> None:
        pair.start("decode", "d0")
        for number in range(4):
            await pair.a.pick(f"r{number}")
        for stream in pair.streams:
            stream.cancel()
        third = pair.routers["b:1"] = type(pair.b)(pair.b.clock, router_id="b", peers=("a:1",))
        worker = third.decode("d0")
        watcher = PeerWatcher(third.core, "b", pair.dial, Random(1))
        watch = asyncio.ensure_future(watcher.run(FixedMembers(["a:1"])))
        await asyncio.sleep(0.1)
        with pytest.raises(Overloaded):
            await third.pick("r9", timeout_s=0.1)
        await asyncio.sleep(2)
        worker.load()
        await third.pick("r9")
        watch.cancel()

    paired(scenario)


def test_a_stream_that_broke_is_dialled_again_and_the_own_address_is_left_alone(paired) -> None:
    async def scenario(pair: Pair) -> None:
        assert pair.num_dials == {"a:1": 2, "b:1": 2}
        for stream in pair.streams:
            stream.cancel()
        await asyncio.sleep(1)
        assert pair.num_dials == {"a:1": 3, "b:1": 3}
        pair.start("decode", "d0")
        for number in range(4):
            await pair.pick(number)
        with pytest.raises(Overloaded):
            await pair.pick(5, timeout_s=0.1)

    paired(scenario)


def test_a_router_without_peers_keeps_no_news(router, clock) -> None:
    async def main() -> None:
        fleet = router()
        fleet.decode("d0")
        await fleet.pick()
        news = fleet.core.follow_news()
        hello = await anext(news)
        assert hello.hello.router_id == "router-0"
        assert not (await anext(news)).events
        await news.aclose()

    run_virtual(main(), clock)


def test_the_number_of_followers_is_bounded(router, clock, monkeypatch) -> None:
    monkeypatch.setattr(news_module, "MAX_PEERS", 1)

    async def main() -> None:
        core = router(peers=("a:1",)).core
        first = core.follow_news()
        await anext(first)
        with pytest.raises(Overloaded):
            await anext(core.follow_news())
        await first.aclose()
        again = core.follow_news()
        await anext(again)
        core.close()
        with pytest.raises(StopAsyncIteration):
            await anext(again)

    run_virtual(main(), clock)


def test_a_peers_nonsense_harms_nobody(router, clock) -> None:
    async def main() -> None:
        fleet = router(peers=("a:1",))
        fleet.decode("d0")
        huge, event = 2**32 - 1, peers_pb2.PeerEvent
        served = peers_pb2.TenantService(model=1, tenant=9, service_s=1)
        session = peers_pb2.SessionWorkers(session=b"x", model=9)
        for name, value in (("r" * 10_000, math.inf), ("r", -1.0), ("r", 1e300), ("r", math.nan)):
            lease = SlotLease(name, huge, huge, huge, 0.0)
            nonsense = placed(
                name,
                leases=[("d9", lease), ("", lease)],
                marks=[1] * 1000,
                expected_s=value,
                service_s=value,
                session=b"x" * 1000,
            )
            news = news_of(nonsense, nonsense._replace(leases=[("d0", lease)]))
            columns = news.events[0].placed
            for each in (columns.decode_workers, columns.prompt_workers, columns.num_marks):
                fleet.core.take_news("b", news)
                each[0] = huge
            columns.services.append(served)
            columns.sessions.append(session)
            del columns.num_blocks[:]
            fleet.core.take_news("b", news)
            fleet.core._fleet.end_leases("r")
        suspect = peers_pb2.Suspect(fingerprint=b"x" * 1000, num_deaths=2)
        fleet.core.take_news("b", peers_pb2.PeerNews(events=[event(), event(suspect=suspect)]))
        waiting = peers_pb2.WaitingTenant(tenant="x", weight=math.nan)
        lines = peers_pb2.PeerLines(lines=[peers_pb2.PeerLine(tenants=[waiting] * 1000)])
        fleet.core.take_news("b", peers_pb2.PeerNews(lines=lines))
        assert (await fleet.pick()).decode.worker_id == "d0"

    run_virtual(main(), clock)


def test_a_peer_of_an_old_protocol_is_refused(router, clock) -> None:
    async def main() -> None:
        core = router(peers=("a:1",)).core

        class Old(NewsStream):
            async def read(self) -> peers_pb2.PeerNews | None:
                news = await super().read()
                if news is not None:
                    news.hello.protocol = 0
                return news

        num_dialled = 0

        def dial(address: str) -> NewsStream:
            nonlocal num_dialled
            num_dialled += 1
            return Old(core)

        watch = asyncio.ensure_future(
            PeerWatcher(core, "b", dial, Random(1)).run(FixedMembers(["a:1"]))
        )
        await asyncio.sleep(3)
        assert 3 <= num_dialled <= 10
        watch.cancel()

    run_virtual(main(), clock)

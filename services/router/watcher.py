"""Keeps one stream open to each address that discovery lists: the reports of workers, and the news
of the other routers.

Dials, and dials again with jittered backoff when a stream is lost. An address that is listed no
longer is not dialled again, but its stream goes on while it works: a worker's own reports count for
more than the listing. Knows neither the contents of reports and news nor gRPC: `dial` opens the
streams.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from enum import Enum, auto
from random import Random
from typing import Protocol

from baton.runtime import logs
from baton.runtime.discovery.members import Discovery, Member
from baton.runtime.shared_stream import StreamLost
from baton.system.clock import Clock
from baton.wire.failures import BatonError
from baton.wire.protocol import agree
from baton.wire.v1 import peers_pb2, worker_pb2
from services.router.fleet.health import TICK_S
from services.router.router_core import RouterCore

FIRST_BACKOFF_S = 0.05
MAX_BACKOFF_S = 1.0

_log = logs.get("router.watcher")


class Stream(Enum):
    """The end of one stream, from its dial on."""

    SILENT = auto()  # nothing came
    LOST = auto()  # it worked for a while
    OWN = auto()  # it led back to this router: the address is left alone


class _Listed:
    """The addresses that discovery lists; `follow` follows one stream to its end."""

    def __init__(self, follow: Callable[[str], Awaitable[Stream]], random: Random) -> None:
        self._follow = follow
        self._random = random
        self._listed: frozenset[str] = frozenset()
        self._watched: set[str] = set()

    async def run(
        self,
        discovery: Discovery,
        on_listed: Callable[[frozenset[str]], None] = lambda addresses: None,
    ) -> None:
        """Follow every address until cancelled."""
        async with asyncio.TaskGroup() as tasks:

            def found(members: Collection[Member]) -> None:
                self._listed = frozenset(member.address for member in members)
                on_listed(self._listed)
                for address in sorted(self._listed - self._watched):
                    self._watched.add(address)
                    tasks.create_task(self._watch(address))

            await discovery.follow(found)

    async def _watch(self, address: str) -> None:
        """Watch an address until it is listed no longer and its stream has ended."""
        backoff_s = FIRST_BACKOFF_S
        while address in self._listed:
            end = await self._follow(address)
            if end is Stream.OWN:
                return
            if end is Stream.LOST:
                backoff_s = FIRST_BACKOFF_S
            await asyncio.sleep(backoff_s * self._random.uniform(0.5, 1.0))
            backoff_s = min(backoff_s * 2, MAX_BACKOFF_S)
        self._watched.discard(address)


class ReportStream(Protocol):
    """The router's side of WorkerReports.Watch."""

    async def read(self) -> worker_pb2.Report | None: ...
    async def write(self, frame: worker_pb2.ReportAck) -> None: ...
    def cancel(self) -> None: ...
    async def close(self) -> None: ...


class Watcher:
    """Takes in the reports of all workers until cancelled, acknowledges each, and calls the core's
    health check at every tick."""

    def __init__(
        self,
        core: RouterCore,
        dial: Callable[[str], ReportStream],
        clock: Clock,
        random: Random,
    ) -> None:
        self._core = core
        self._dial = dial
        self._clock = clock
        self._workers = _Listed(self._follow, random)

    async def run(self, discovery: Discovery) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._workers.run(discovery, self._core.list_workers))
            await self._check_health()

    async def _check_health(self) -> None:
        """Let the core check the workers' health every TICK_S."""
        while True:
            began_at = self._clock.now()
            await asyncio.sleep(TICK_S)
            self._core.check_health(self._clock.now() - began_at)

    async def _follow(self, endpoint: str) -> Stream:
        """Follow one stream from dial to loss."""
        stream = self._dial(endpoint)
        end = Stream.SILENT
        try:
            await stream.write(self._core.hello(endpoint))
            while (report := await stream.read()) is not None:
                ack = self._core.apply_report(endpoint, report)
                end = Stream.LOST
                await stream.write(ack)
        except StreamLost:
            pass
        except BatonError as error:
            _log.warning("reports_refused", endpoint=endpoint, reason=str(error))
        finally:
            stream.cancel()
            await stream.close()
        self._core.lose(endpoint)
        return end


class NewsStream(Protocol):
    """The following side of RouterPeers.Follow."""

    async def read(self) -> peers_pb2.PeerNews | None: ...
    def cancel(self) -> None: ...
    async def close(self) -> None: ...


class NewsTaker(Protocol):
    """The part of a router that takes the news in."""

    def take_news(self, router_id: str, news: peers_pb2.PeerNews) -> None: ...
    def lose_peer(self, router_id: str) -> None: ...


class PeerWatcher:
    """Takes in the news of all other routers until cancelled. Finds this router itself among them
    by its id, and leaves that address alone."""

    def __init__(
        self, core: NewsTaker, router_id: str, dial: Callable[[str], NewsStream], random: Random
    ) -> None:
        self._core = core
        self._router_id = router_id
        self._dial = dial
        self._routers = _Listed(self._follow, random)

    async def run(self, discovery: Discovery) -> None:
        await self._routers.run(discovery)

    async def _follow(self, address: str) -> Stream:
        """Follow one stream from dial to loss."""
        stream = self._dial(address)
        peer: str | None = None
        try:
            while (news := await stream.read()) is not None:
                if peer is None:
                    agree(news.hello.protocol, peer=f"the router at {address}", own="this router")
                    if news.hello.router_id == self._router_id:
                        return Stream.OWN
                    peer = news.hello.router_id
                    _log.info("peer_found", address=address, router_id=peer)
                self._core.take_news(peer, news)
        except BatonError as error:
            _log.warning("peer_refused", address=address, reason=str(error))
        finally:
            stream.cancel()
            await stream.close()
            if peer is not None:
                self._core.lose_peer(peer)
        if peer is None:
            return Stream.SILENT
        _log.warning("peer_lost", address=address, router_id=peer)
        return Stream.LOST

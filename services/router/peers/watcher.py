"""Follows the news of each router that discovery lists, and dials again when a stream is lost.

Finds this router itself among them by its id, and leaves that address alone. Knows neither what the
news say nor gRPC: `dial` opens the streams.
"""

import asyncio
from collections.abc import Callable, Collection
from random import Random
from typing import Protocol

from baton.runtime import logs
from baton.runtime.discovery.members import Discovery, Member
from baton.wire.failures import BatonError
from baton.wire.protocol import agree
from baton.wire.v1 import peers_pb2

FIRST_BACKOFF_S = 0.05
MAX_BACKOFF_S = 1.0

_log = logs.get("router.peers")


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
    """Follows all peers until cancelled."""

    def __init__(
        self, core: NewsTaker, router_id: str, dial: Callable[[str], NewsStream], random: Random
    ) -> None:
        self._core = core
        self._router_id = router_id
        self._dial = dial
        self._random = random
        self._listed: frozenset[str] = frozenset()
        self._watched: set[str] = set()

    async def run(self, discovery: Discovery) -> None:
        async with asyncio.TaskGroup() as tasks:

            def found(members: Collection[Member]) -> None:
                self._listed = frozenset(member.address for member in members)
                for address in sorted(self._listed - self._watched):
                    self._watched.add(address)
                    tasks.create_task(self._watch(address))

            await discovery.follow(found)

    async def _watch(self, address: str) -> None:
        """Follow the router at this address while it is listed, unless it is this one."""
        backoff_s = FIRST_BACKOFF_S
        while address in self._listed:
            peer = await self._follow(address)
            if peer == self._router_id:
                return
            if peer is not None:
                _log.warning("peer_lost", address=address, router_id=peer)
                backoff_s = FIRST_BACKOFF_S
            await asyncio.sleep(backoff_s * self._random.uniform(0.5, 1.0))
            backoff_s = min(backoff_s * 2, MAX_BACKOFF_S)
        self._watched.discard(address)

    async def _follow(self, address: str) -> str | None:
        """Follow one stream to its end; returns the id of the router, if it has said hello."""
        stream = self._dial(address)
        peer: str | None = None
        try:
            while (news := await stream.read()) is not None:
                if peer is None:
                    agree(news.hello.protocol, peer=f"the router at {address}", own="this router")
                    peer = news.hello.router_id
                    if peer == self._router_id:
                        return peer
                    _log.info("peer_found", address=address, router_id=peer)
                self._core.take_news(peer, news)
        except BatonError as error:
            _log.warning("peer_refused", address=address, reason=str(error))
        finally:
            stream.cancel()
            await stream.close()
            if peer is not None and peer != self._router_id:
                self._core.lose_peer(peer)
        return peer

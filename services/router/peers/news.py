"""The news that this router tells its peers: what it has just given away, and which tenants wait
here.

A ring of the latest events feeds all peers that follow. A peer that comes later, or falls behind,
misses what is too old: by then a slot lease has ended, and reports show the request.
"""

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import islice

from baton.system.clock import Clock
from baton.wire.failures import Overloaded
from baton.wire.protocol import PROTOCOL_VERSION
from baton.wire.v1 import peers_pb2
from services.router.peers.placements import PlacedRequest, columns_of
from services.router.pick.pick_request import PickRequest
from services.router.pick.placement import Placement
from services.router.settings import Settings

MAX_PEERS = 16
# Tenants of a line that the peers are told of.
MAX_TENANTS = 256
MAX_EVENTS = 8192
MAX_EVENTS_A_MESSAGE = 1024
# Events leave at most once in this time; the first after a pause at once.
PACE_S = 0.02
# The lines are told this often while anybody waits ...
LINES_S = 0.1
# ... and else this often, which shows that this router lives.
QUIET_S = 0.5
# A message costs as much as a pick. So with more events than this from lines to lines, they leave
# with the lines, if there is plenty of room.
MANY_EVENTS = 20

_Told = PlacedRequest | peers_pb2.PeerEvent


class PeerNewsLog:
    """The events of the time in which a slot lease lives. A router without peers tells nothing."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._hello = peers_pb2.PeerHello(protocol=PROTOCOL_VERSION, router_id=settings.router_id)
        self._memory_s = settings.slot_lease_s
        self.has_peers = bool(settings.peers)
        self._clock = clock
        self._events: deque[tuple[float, _Told]] = deque(maxlen=MAX_EVENTS)
        self._num_told = 0
        self._num_followers = 0
        self._changed = asyncio.Event()
        self._over = asyncio.Event()

    def placed(self, wanted: PickRequest, placement: Placement) -> None:
        """Tell that a request got its workers; not called without peers."""
        self._tell(PlacedRequest.of(wanted, placement))

    def ended(self, request_id: str) -> None:
        """Tell that a request is not on its way to any worker."""
        if self.has_peers:
            self._tell(peers_pb2.PeerEvent(ended_request_id=request_id))

    def failed(self, worker_id: str) -> None:
        """Tell that a request failed at this worker and is placed anew."""
        if self.has_peers:
            failed = peers_pb2.FailedAttempt(worker_id=worker_id)
            self._tell(peers_pb2.PeerEvent(failed=failed))

    def suspected(self, fingerprint: bytes, num_deaths: int) -> None:
        """Tell that cores have died with a request."""
        if self.has_peers:
            suspect = peers_pb2.Suspect(fingerprint=fingerprint, num_deaths=num_deaths)
            self._tell(peers_pb2.PeerEvent(suspect=suspect))

    def harmless(self, fingerprint: bytes) -> None:
        """Tell that a suspect has proved harmless."""
        if self.has_peers:
            self._tell(peers_pb2.PeerEvent(harmless_fingerprint=fingerprint))

    async def follow(
        self, lines: Callable[[], peers_pb2.PeerLines], is_roomy: Callable[[int], bool]
    ) -> AsyncIterator[peers_pb2.PeerNews]:
        """Yield the news for one peer until cancelled or closed, many at a time while the fleet
        `is_roomy` for so many. Raises Overloaded for one peer too many."""
        if self._num_followers >= MAX_PEERS:
            raise Overloaded(f"{MAX_PEERS} routers follow this one already")
        self._num_followers += 1
        try:
            async for news in self._news(lines, is_roomy):
                yield news
        finally:
            self._num_followers -= 1

    def close(self) -> None:
        """End all streams."""
        self._changed.set()
        self._over.set()

    async def _news(
        self, lines: Callable[[], peers_pb2.PeerLines], is_roomy: Callable[[int], bool]
    ) -> AsyncIterator[peers_pb2.PeerNews]:
        told = lines()
        yield peers_pb2.PeerNews(hello=self._hello, lines=told)
        told_at = looked_at = self._clock.now()
        position, num_before, is_busy = 0, self._num_told, False
        while not self._over.is_set():
            changed = self._over if is_busy else self._next_change()
            now = self._clock.now()
            is_due = now - looked_at >= LINES_S
            news = peers_pb2.PeerNews()
            if is_due or (position < self._num_told and not is_busy):
                events, position = self._since(position)
                news.events.extend(events)
            if is_due:
                num_new = self._num_told - num_before
                is_busy = num_new > MANY_EVENTS and is_roomy(num_new * self._num_followers)
                looked_at, num_before = now, self._num_told
                latest = lines()
                if latest.lines or latest != told or now - told_at >= QUIET_S:
                    news.lines.CopyFrom(latest)
                    told_at, told = now, latest
            if news.events or news.HasField("lines"):
                yield news
                await asyncio.sleep(PACE_S)
            if is_busy or position == self._num_told:
                await _wait(changed, max(looked_at + LINES_S - self._clock.now(), PACE_S))

    def _tell(self, told: _Told) -> None:
        now, events = self._clock.now(), self._events
        while events and now - events[0][0] >= self._memory_s:
            events.popleft()
        events.append((now, told))
        self._num_told += 1
        if not self._changed.is_set():
            self._changed.set()

    def _next_change(self) -> asyncio.Event:
        """Return what the next event will set."""
        if self._changed.is_set():
            self._changed = asyncio.Event()
        return self._changed

    def _since(self, position: int) -> tuple[list[peers_pb2.PeerEvent], int]:
        """The events from this position on that still count, and the position behind them."""
        start = max(position, self._num_told - len(self._events))
        end = min(self._num_told, start + MAX_EVENTS_A_MESSAGE)
        now = self._clock.now()
        # From the right: what is asked for is there, and a deque is slow in its middle.
        latest = list(islice(reversed(self._events), self._num_told - start))
        events = [each for each in latest[self._num_told - end :] if now - each[0] < self._memory_s]
        return [_message(run, now) for run in _runs(reversed(events))], end


def _runs(events: Iterable[tuple[float, _Told]]) -> Iterator[list[tuple[float, _Told]]]:
    """Cut events into those that are told together: requests in a row, and each other one."""
    run: list[tuple[float, _Told]] = []
    for at, told in events:
        goes_on = isinstance(told, PlacedRequest) and run and isinstance(run[0][1], PlacedRequest)
        if run and not (goes_on and at - run[0][0] <= LINES_S):
            yield run
            run = []
        run.append((at, told))
    if run:
        yield run


def _message(run: list[tuple[float, _Told]], now: float) -> peers_pb2.PeerEvent:
    last_at, last = run[-1]
    if isinstance(last, PlacedRequest):
        requests = [told for _, told in run if isinstance(told, PlacedRequest)]
        last = peers_pb2.PeerEvent(placed=columns_of(requests))
    last.age_ms = math.ceil((now - last_at) * 1000)
    return last


async def _wait(changed: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await changed.wait()
    except TimeoutError:
        pass

"""One link to each prefill worker in use, and how fast it delivers."""

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterator
from statistics import median
from typing import Any

from baton.system.rate_meter import RateMeter
from baton.wire import failures
from baton.wire.limits import MAX_ZONES
from baton.wire.v1 import worker_pb2
from baton.worker.deps import WorkerDeps
from services.decode_worker.prefill_hello import Dial
from services.decode_worker.prefill_link import PrefillLink

MAX_LINKS = 256
# The rate comes from transfers of this size on; a smaller one takes as long as its messages, for
# which the middle one of the last few stands, and before so many nothing.
MIN_RATE_BYTES = 2**20
MAX_SMALL, MIN_SMALL = 5, 3
# After so many bytes, earlier ones count half.
RATE_HALF_LIFE_BYTES = 64 * 2**20


class HandoffMeter:
    """How fast handoffs of one origin are: the rate of large ones, and how long small ones take."""

    def __init__(self) -> None:
        self._rate = RateMeter(RATE_HALF_LIFE_BYTES)
        self._small_s: deque[float] = deque(maxlen=MAX_SMALL)

    def observe(self, num_bytes: int, duration_s: float) -> None:
        """Take in one handoff."""
        if num_bytes >= MIN_RATE_BYTES:
            self._rate.observe(num_bytes, duration_s)
        else:
            self._small_s.append(duration_s)

    @property
    def per_s(self) -> float:
        """Bytes per second; 0 = not known."""
        return self._rate.per_s

    @property
    def least_s(self) -> float:
        """The time of a small handoff; 0 = not known."""
        return median(self._small_s) if len(self._small_s) >= MIN_SMALL else 0.0


class PrefillLinks:
    """All links of this worker, by endpoint. `run` must run while transfers are opened."""

    def __init__(self, deps: WorkerDeps, dial: Dial) -> None:
        self._deps = deps
        self._dial = dial
        # By endpoint, the one that new transfers use; and all, those included that only end theirs.
        self._links: dict[str, PrefillLink] = {}
        self._running: dict[PrefillLink, None] = {}
        self._group: asyncio.TaskGroup | None = None
        self._last_xfer_id = 0
        # Of its own zone and of unknown ones; and by the name of each other zone.
        self._near = HandoffMeter()
        self._far: dict[str, HandoffMeter] = {}

    def open_request_ids(self) -> Iterator[str]:
        """The request ids of all transfers."""
        for link in self._running:
            yield from link.open_request_ids()

    @property
    def num_transfers(self) -> int:
        return sum(link.num_transfers for link in self._running)

    def observe_rate(self, num_bytes: int, duration_s: float, zone: str = "") -> None:
        """All bytes of one transfer from a zone, and how long it went on after their compute was
        done.

        The router is told what a handoff adds to its prefill, at least and per byte.
        """
        reports = self._deps.reports
        own = reports.register.zone
        if not zone or not own or zone == own:
            self._near.observe(num_bytes, duration_s)
            reports.set_handoff_speed(self._near.per_s, self._near.least_s)
        elif (meter := self._far_meter(zone)) is not None:
            meter.observe(num_bytes, duration_s)
            reports.set_far_handoff_speed(
                worker_pb2.FarHandoff(zone=zone, bytes_per_s=meter.per_s, least_s=meter.least_s)
            )

    def _far_meter(self, zone: str) -> "HandoffMeter | None":
        """The meter of another zone; None beyond MAX_ZONES."""
        if zone not in self._far and len(self._far) < MAX_ZONES:
            self._far[zone] = HandoffMeter()
        return self._far.get(zone)

    def next_xfer_id(self) -> int:
        """Never the same twice in one life of this worker."""
        self._last_xfer_id += 1
        return self._last_xfer_id

    def get(self, endpoint: str) -> PrefillLink:
        """The link to `endpoint`, dialling it if needed. Raises Overloaded beyond MAX_LINKS."""
        link = self._links.get(endpoint)
        if link is not None and link.is_usable:
            return link
        if len(self._running) >= MAX_LINKS:
            raise failures.Overloaded(f"{MAX_LINKS} prefill workers are connected already")
        assert self._group is not None, "run() first"
        only_plain = link is not None and link.distrusts_transport
        link = self._links[endpoint] = PrefillLink(endpoint, self._deps)
        self._running[link] = None
        self._group.create_task(self._run_link(link, only_plain=only_plain))
        return link

    def start(self, handoff: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a handoff that uses these links; like them it ends with `run`."""
        assert self._group is not None, "run() first"
        return self._group.create_task(handoff)

    async def run(self) -> None:
        """Own the tasks of links and handoffs until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            await asyncio.Event().wait()

    async def close(self, reason: str) -> None:
        """Say Bye on every link."""
        async with asyncio.TaskGroup() as group:
            for link in self._running:
                group.create_task(link.close(reason))

    async def _run_link(self, link: PrefillLink, *, only_plain: bool) -> None:
        try:
            await link.run(self._dial, only_plain=only_plain)
        finally:
            self._running.pop(link, None)
            if self._links.get(link.endpoint) is link:
                del self._links[link.endpoint]

"""All links of one gateway to its decode workers: dialled when needed, closed when idle, given up
when the router has ejected a worker. Knows no frames."""

import asyncio
from collections.abc import Iterator
from functools import partial

from baton.runtime import logs
from baton.system.clock import Clock
from baton.wire.v1 import router_pb2
from services.gateway.clients.protocols import Dial
from services.gateway.routing.crash_record import Crashes
from services.gateway.workers.migration import EarlyMigration
from services.gateway.workers.worker_link import WorkerLink

IDLE_CLOSE_S = 60.0
CLOSE_TIMEOUT_S = 1.0

_log = logs.get("worker_link")


class WorkerLinks:
    """All links of this gateway: dialled on the first pick, closed after IDLE_CLOSE_S idle."""

    def __init__(
        self, dial: Dial, gateway_id: str, clock: Clock, migration: EarlyMigration
    ) -> None:
        self._dial = dial
        self._gateway_id = gateway_id
        self._clock = clock
        self._migration = migration
        self._links: dict[tuple[str, str], WorkerLink] = {}
        self._num_links = 0
        self.crashes = Crashes()
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Own the links' tasks until cancelled."""
        async with asyncio.TaskGroup() as self._tasks:
            while True:
                await asyncio.sleep(IDLE_CLOSE_S / 4)
                self._close_idle()

    def link_to(self, worker: router_pb2.WorkerEndpoint) -> WorkerLink:
        """The link to a worker; dials one if there is none, or if it has ended."""
        assert self._tasks is not None, "run() owns the links"
        key = (worker.worker_id, worker.endpoint)
        link = self._links.get(key)
        if link is None or link.has_ended:
            self._num_links += 1
            link = WorkerLink(worker, self._gateway_id, self._clock, self._num_links, self.crashes)
            self._links[key] = link
            link.on_go_away = partial(self._migrate_from, link)
            self._tasks.create_task(link.run(self._dial))
        return link

    def open_attempts(self) -> Iterator[tuple[str, str]]:
        """The (request id, worker id) of every attempt that was not forgotten."""
        for link in self._links.values():
            for attempt in link.open_attempts():
                yield attempt.key.request_id, link.worker.worker_id

    def num_open(self, worker_id: str) -> int | None:
        """The number of attempts on a worker; None while its link is lost or takes no new ones."""
        links = [link for link in self._links.values() if link.worker.worker_id == worker_id]
        if any(link.closed_to_new for link in links):
            return None
        return sum(link.num_open for link in links)

    def lose(self, worker_id: str) -> None:
        """Give up the links to a worker that the router has ejected: its streams must migrate. May
        be called any number of times."""
        for key, link in list(self._links.items()):
            if link.worker.worker_id == worker_id:
                _log.warning("worker_given_up", worker_id=worker_id, num_open=link.num_open)
                del self._links[key]
                link.give_up()

    async def close_all(self) -> None:
        """Announce the end on every stream and wait for the workers to end them."""
        links = list(self._links.values())
        self._links.clear()
        for link in links:
            link.close()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                for link in links:
                    await link.ended()
        except TimeoutError:
            _log.warning("streams_not_closed", num_links=len(links))

    def _migrate_from(self, link: WorkerLink, left_s: float) -> None:
        assert self._tasks is not None, "run() owns the links"
        self._tasks.create_task(
            self._migration.migrate_from(link.worker.worker_id, link.open_attempts, left_s)
        )

    def _close_idle(self) -> None:
        oldest_s = self._clock.now() - IDLE_CLOSE_S
        for key, link in list(self._links.items()):
            if link.has_ended:
                del self._links[key]
            elif not link.num_open and link.idle_since_s < oldest_s:
                link.close()
                del self._links[key]

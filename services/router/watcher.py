"""Keeps one report stream open to each worker address that discovery lists.

Dials, takes reports in, acknowledges each, and dials again with jittered backoff when the stream is
lost. An address that is listed no longer is not dialled again, but its stream goes on while it
works: a worker's own reports count for more than the listing. Calls the core's health check at
every tick. Knows neither the contents of reports nor gRPC: `dial` opens the streams.
"""

import asyncio
from collections.abc import Callable, Collection
from random import Random
from typing import Protocol

from baton.runtime import logs
from baton.runtime.discovery.members import Discovery, Member
from baton.runtime.shared_stream import StreamLost
from baton.system.clock import Clock
from baton.wire.failures import BatonError
from baton.wire.v1 import worker_pb2
from services.router.fleet.health import TICK_S
from services.router.router_core import RouterCore

FIRST_BACKOFF_S = 0.05
MAX_BACKOFF_S = 1.0

_log = logs.get("router.watcher")


class ReportStream(Protocol):
    """The router's side of WorkerReports.Watch."""

    async def read(self) -> worker_pb2.Report | None: ...
    async def write(self, frame: worker_pb2.ReportAck) -> None: ...
    def cancel(self) -> None: ...
    async def close(self) -> None: ...


class Watcher:
    """Watches all workers until cancelled."""

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
        self._random = random
        self._listed: frozenset[str] = frozenset()
        self._watched: set[str] = set()

    async def run(self, discovery: Discovery) -> None:
        async with asyncio.TaskGroup() as tasks:

            def found(members: Collection[Member]) -> None:
                self._listed = frozenset(member.address for member in members)
                self._core.list_workers(self._listed)
                for endpoint in sorted(self._listed - self._watched):
                    self._watched.add(endpoint)
                    tasks.create_task(self._watch(endpoint))

            tasks.create_task(discovery.follow(found))
            await self._check_health()

    async def _check_health(self) -> None:
        """Let the core check the workers' health every TICK_S."""
        while True:
            began_at = self._clock.now()
            await asyncio.sleep(TICK_S)
            self._core.check_health(self._clock.now() - began_at)

    async def _watch(self, endpoint: str) -> None:
        """Watch the endpoint until it is listed no longer and its stream has ended."""
        backoff_s = FIRST_BACKOFF_S
        while endpoint in self._listed:
            if await self._follow(endpoint):
                backoff_s = FIRST_BACKOFF_S
            self._core.lose(endpoint)
            await asyncio.sleep(backoff_s * self._random.uniform(0.5, 1.0))
            backoff_s = min(backoff_s * 2, MAX_BACKOFF_S)
        self._watched.discard(endpoint)

    async def _follow(self, endpoint: str) -> bool:
        """Follow one stream from dial to loss. Returns whether any report was taken in."""
        stream = self._dial(endpoint)
        has_reported = False
        try:
            await stream.write(self._core.hello(endpoint))
            while (report := await stream.read()) is not None:
                ack = self._core.apply_report(endpoint, report)
                has_reported = True
                await stream.write(ack)
        except StreamLost:
            pass
        except BatonError as error:
            _log.warning("reports_refused", endpoint=endpoint, reason=str(error))
        finally:
            stream.cancel()
            await stream.close()
        return has_reported

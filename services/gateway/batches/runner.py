"""The batches that one gateway works on: it looks for those that no other one does."""

import asyncio
import contextlib
from functools import partial

from baton.runtime import logs
from baton.wire.failures import Unavailable
from services.gateway.batches.run import LEASE_S, BatchRun, RunDeps
from services.gateway.batches.store import BatchKey

# Between two looks for work, on average.
LOOK_S = 2.0
# At once; one of each tenant.
MAX_BATCHES = 4
_log = logs.get("batches")


class BatchRunner:
    """Works on batches, in `run`, until it is told to leave."""

    def __init__(self, deps: RunDeps) -> None:
        self._deps = deps
        self._leaving = asyncio.Event()
        self._running: dict[BatchKey, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Look for batches until cancelled."""
        try:
            while not self._leaving.is_set():
                await asyncio.sleep(LOOK_S * self._deps.rng.uniform(0.5, 1.5))
                with contextlib.suppress(Unavailable):
                    await self._look()
        finally:
            await self.leave(0.0)

    async def leave(self, timeout_s: float) -> None:
        """Begin no more lines, wait for those that have begun, and give their batches back. Lines
        that have not ended after `timeout_s` are given up: another gateway begins them anew."""
        self._leaving.set()
        running = set(self._running.values())
        if not running:
            return
        _, late = await asyncio.wait(running, timeout=timeout_s)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)

    async def _look(self) -> None:
        """Take batches that are free, as far as there are places."""
        if len(self._running) == MAX_BATCHES:
            return
        for key in await self._deps.store.free_batches():
            tenants = {running.tenant for running in self._running}
            if self._leaving.is_set() or len(self._running) == MAX_BATCHES:
                return
            if key.tenant not in tenants and not await self._lease(key):
                run = BatchRun(key, self._deps, self._leaving).run()
                self._running[key] = task = asyncio.create_task(run)
                task.add_done_callback(partial(self._ended, key))

    async def _lease(self, key: BatchKey) -> str:
        return await self._deps.store.lease(key, self._deps.gateway_id, LEASE_S)

    def _ended(self, key: BatchKey, task: asyncio.Task[None]) -> None:
        del self._running[key]
        bug = None if task.cancelled() else task.exception()
        if isinstance(bug, Exception):
            _log.bug("batch_failed", bug, batch_id=key.batch_id)

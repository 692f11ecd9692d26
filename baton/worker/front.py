"""The part of a worker's front that both roles share: admission, audit, stall, death and drain."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable, Iterator

from baton.engine.protocol.client import CoreDied
from baton.engine.protocol.messages import StepEvents
from baton.runtime.audit import Audit
from baton.system.violation import Violation
from baton.wire import failures
from baton.worker.deps import WorkerDeps


class WorkerFront(ABC):
    """Serves peers around one engine core. `run` must run while streams are served."""

    def __init__(self, deps: WorkerDeps) -> None:
        self._deps = deps
        self._is_draining = False
        self._audit = Audit()
        deps.watch.on_change(self._stall_changed)
        deps.dispatcher.observe(self._report_violations)
        deps.dispatcher.observe(deps.metrics.observe)
        deps.dispatcher.observe(deps.reports.apply)

    async def run(self) -> None:
        """Drive engine events and background tasks until cancelled. Raises CoreDied, in a group."""
        async with asyncio.TaskGroup() as group:
            for task in self._background_tasks():
                group.create_task(task)
            group.create_task(self._deps.watch.run())
            if self._deps.adapters is not None:
                group.create_task(self._deps.adapters.run())
            group.create_task(self._audit.run(self.violations))
            try:
                await self._deps.dispatcher.run()
            except CoreDied as died:
                # Before the background tasks end, so that open requests fail with this cause.
                self._core_died(died.suspect_request_ids)
                await self._finish_streams("core died")
                raise

    async def drain(self, limit_s: float) -> None:
        """Take nothing new, let open requests end within `limit_s`, then end all streams."""
        self._is_draining = True
        self._deps.reports.set_draining()
        try:
            async with asyncio.timeout(limit_s):
                await self._wait_until_idle()
        except TimeoutError:
            self._drain_cut_short()
        await self._finish_streams("draining")

    def check_admission(self) -> None:
        """Raises Unavailable while the worker drains or its core stands still."""
        if self._is_draining:
            raise failures.Unavailable("this worker is draining", reason="draining")
        if self._deps.watch.is_stalled:
            raise failures.Unavailable(self._deps.watch.reason())

    @abstractmethod
    def violations(self) -> Iterator[Violation]:
        """Find sequences, requests and transfers that do not belong together."""

    @abstractmethod
    def _background_tasks(self) -> Iterable[Coroutine[None, None, None]]:
        """The role's own tasks, which `run` runs."""

    @abstractmethod
    def _core_stalled(self) -> None:
        """Fail all open requests: they move to another worker. A core that wakes up drops them."""

    @abstractmethod
    def _core_died(self, suspect_request_ids: tuple[str, ...]) -> None:
        """Fail all open requests; the suspects ran in the step in which the core died."""

    @abstractmethod
    async def _wait_until_idle(self) -> None:
        """Wait until no request is open."""

    @abstractmethod
    def _drain_cut_short(self) -> None:
        """Log how much is still open at the limit of the drain, and fail it."""

    @abstractmethod
    async def _finish_streams(self, reason: str) -> None:
        """Say Bye to all peers at once: one that does not answer must not hold up the rest."""

    def _stall_changed(self, is_stalled: bool) -> None:
        if is_stalled:
            self._core_stalled()

    def _report_violations(self, events: StepEvents) -> None:
        if events.violations:
            self._audit.found(events.violations)

"""Watches that a gateway's requests, leases and attempts belong together.

Every request that got a lease settles exactly once, known when it ends; every lease and every
attempt belongs to a request that runs, looked at from time to time (runtime/audit.py).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from baton.runtime.audit import Audit
from baton.system.violation import Violation
from services.gateway.request.state import Exchange
from services.gateway.tenants.leases import LeaseKeeper
from services.gateway.workers.worker_links import WorkerLinks


@dataclass(slots=True)
class _Running:
    x: Exchange
    num_settled: int = 0


class GatewayAuditor:
    """`request` is around every request, `settled` tells of each settlement; `run` looks."""

    def __init__(self, leases: LeaseKeeper, links: WorkerLinks) -> None:
        self._leases = leases
        self._links = links
        self._running: dict[str, _Running] = {}
        self._audit = Audit()

    @contextmanager
    def request(self, x: Exchange) -> Iterator[None]:
        """A request, from its arrival to its end."""
        running = self._running[x.request_id] = _Running(x)
        try:
            yield
        finally:
            self._running.pop(x.request_id, None)
            if x.progress.lease is not None and running.num_settled != 1:
                detail = f"ended with {running.num_settled} settlements"
                self._audit.found([Violation("settled_once", x.request_id, detail)])

    def running(self) -> list[Exchange]:
        """The requests that have not ended, oldest first."""
        return [running.x for running in self._running.values()]

    def settled(self, x: Exchange) -> None:
        """Its record was acknowledged, or goes to the outbox, whether or not anybody waits."""
        if (running := self._running.get(x.request_id)) is not None:
            running.num_settled += 1

    async def run(self) -> None:
        """Look from time to time until cancelled."""
        await self._audit.run(self.violations)

    def violations(self) -> Iterator[Violation]:
        """What does not belong together now."""
        leased = set(self._leases.open_request_ids())
        billed = {running.x.bill_id for running in self._running.values()}
        for bill_id in leased - billed:
            yield Violation("lease_without_request", bill_id, "")
        for request_id, running in self._running.items():
            is_leased = running.x.bill_id in leased
            if running.x.progress.lease and not running.num_settled and not is_leased:
                yield Violation("request_without_lease", request_id, f"in {running.x.stage}")
        for request_id, worker_id in self._links.open_attempts():
            if request_id not in self._running:
                yield Violation("attempt_without_request", request_id, f"at {worker_id}")

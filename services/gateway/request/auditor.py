"""An audit of one gateway: its requests, leases and attempts must belong together.

Every request that got a lease settles exactly once, which is checked when it ends. Every lease and
every attempt belongs to a request that runs, which is checked from time to time
(baton/runtime/audit.py).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from baton.runtime.audit import Audit
from baton.system.violation import Violation
from services.gateway.request.trace import RequestTrace
from services.gateway.tenants.leases import LeaseRenewer
from services.gateway.workers.worker_links import WorkerLinks


@dataclass(slots=True)
class _Running:
    trace: RequestTrace
    has_lease: bool = False
    num_settled: int = 0


class GatewayAuditor:
    """The audit: `request` is around every request; `reserved` and `settled` note its lease."""

    def __init__(self, leases: LeaseRenewer, links: WorkerLinks) -> None:
        self._leases = leases
        self._links = links
        self._running: dict[str, _Running] = {}
        self._audit = Audit()

    @contextmanager
    def request(self, trace: RequestTrace) -> Iterator[None]:
        """Watch a request, from its arrival to its end."""
        running = self._running[trace.request_id] = _Running(trace)
        try:
            yield
        finally:
            self._running.pop(trace.request_id, None)
            if running.has_lease and running.num_settled != 1:
                detail = f"ended with {running.num_settled} settlements"
                self._audit.found([Violation("settled_once", trace.request_id, detail)])

    def running(self) -> list[RequestTrace]:
        """The requests that have not ended, oldest first."""
        return [running.trace for running in self._running.values()]

    def running_one(self, request_id: str) -> RequestTrace | None:
        """The request with this id, if it has not ended."""
        running = self._running.get(request_id)
        return None if running is None else running.trace

    def reserved(self, request_id: str) -> None:
        """Note that the request has a lease from now on."""
        if (running := self._running.get(request_id)) is not None:
            running.has_lease = True

    def settled(self, request_id: str) -> None:
        """Note that its usage record was acknowledged, or goes to the outbox."""
        if (running := self._running.get(request_id)) is not None:
            running.num_settled += 1

    async def run(self) -> None:
        """Check from time to time until cancelled."""
        await self._audit.run(self.violations)

    def violations(self) -> Iterator[Violation]:
        """The leases, requests and attempts that do not belong together now."""
        leased = set(self._leases.open_request_ids())
        for request_id in leased - self._running.keys():
            yield Violation("lease_without_request", request_id, "")
        for request_id, running in self._running.items():
            if running.has_lease and not running.num_settled and request_id not in leased:
                yield Violation("request_without_lease", request_id, f"in {running.trace.stage}")
        for request_id, worker_id in self._links.open_attempts():
            if request_id not in self._running:
                yield Violation("attempt_without_request", request_id, f"at {worker_id}")

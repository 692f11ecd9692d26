"""The tokens that quota lets a running request produce: its lease, and the credit from it."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from baton.wire.failures import BatonError, DeadlineExceeded, LimitExceeded, Unavailable
from services.gateway.tenants.lease import Lease, Standing, nothing_changes
from services.gateway.tenants.leases import LeaseRenewer
from services.gateway.workers.attempt import Attempt
from services.gateway.workers.credit import CreditMeter


class Payment:
    """Keeps the credit of one request and of its current attempt equal to its lease."""

    def __init__(self, lease: Lease, meter: CreditMeter, leases: LeaseRenewer) -> None:
        self.meter = meter
        self._lease = lease
        self._leases = leases
        self._attempt: Attempt | None = None
        self._changed = asyncio.Event()

    @contextmanager
    def following(self) -> Iterator[None]:
        """Ask quota for more tokens, and follow its answers, while attempts run."""
        lease = self._lease
        lease.on_change = self._on_change
        self.meter.ask_with(partial(self._leases.ask, lease))
        try:
            yield
        finally:
            lease.on_change = nothing_changes

    def check(self) -> None:
        """Raise Unavailable when the lease was lost."""
        if self._lease.standing is Standing.LOST:
            raise _lease_lost()

    @contextmanager
    def explaining(self, received: Callable[[], Mapping[int, int]]) -> Iterator[None]:
        """Name the shortage as the reason, where it is one, why no token came in time. `received`:
        the tokens of each open choice."""
        try:
            yield
        except DeadlineExceeded as error:
            if self.meter.is_paused(received()):
                raise self.overdue() from error
            raise

    def overdue(self) -> BatonError:
        """The failure of a request that waited for a grant for as long as it may."""
        if self._lease.standing is Standing.SHORT:
            return LimitExceeded("The key's tokens per minute had no room for the rest in time.")
        return Unavailable("quota granted no more tokens in time", reason="quota_unavailable")

    async def changed(self) -> None:
        """Wait for an answer of quota since the last call."""
        await self._changed.wait()
        self._changed.clear()

    def attach(self, attempt: Attempt, given: Mapping[int, int]) -> None:
        """Begin to send credit to a new attempt, which has it up to these output indexes."""
        self._attempt = attempt
        self.meter.attach(attempt.give, given)

    def detach(self) -> None:
        """Stop sending credit: the attempt is over."""
        self._attempt = None
        self.meter.detach()

    def _on_change(self) -> None:
        self.meter.replenish()
        self._changed.set()
        if self._attempt is not None:
            if self._lease.standing is Standing.LOST:
                self._attempt.abandon(_lease_lost())
            self._attempt.poke()


def _lease_lost() -> BatonError:
    return Unavailable("the quota lease was lost", reason="quota_unavailable")

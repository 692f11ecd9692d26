"""Every open transfer of a prefill worker, each under a lease of its decode worker.

Knows no streams.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from baton.handoff.ticket import LEASE_S, SWEEP_INTERVAL_S
from baton.system.clock import Clock
from baton.wire import failures
from services.prefill_worker.outgoing_transfer import OutgoingTransfer

MAX_TRANSFERS = 1024


class OpenTransfers:
    """Iterates over transfers. `check_admission` raises Unavailable while none is taken."""

    def __init__(self, clock: Clock, check_admission: Callable[[], None]) -> None:
        self._clock = clock
        self._check_admission = check_admission
        # The ends of the leases that have not run out yet.
        self._lease_ends: dict[OutgoingTransfer, float] = {}
        # By transfer, the decode worker that asked for it.
        self._peers: dict[OutgoingTransfer, str] = {}
        self._became_empty = asyncio.Event()

    def __len__(self) -> int:
        return len(self._peers)

    def __iter__(self) -> Iterator[OutgoingTransfer]:
        """A copy: to end a transfer changes nothing here."""
        return iter(list(self._peers))

    @contextmanager
    def admitted(self, transfer: OutgoingTransfer, peer: str) -> Iterator[None]:
        """Hold a lease for `transfer` meanwhile. Raises Unavailable."""
        self._check_admission()
        if len(self._lease_ends) >= MAX_TRANSFERS:
            raise failures.Overloaded(f"{MAX_TRANSFERS} transfers are open already")
        self._lease_ends[transfer] = self._clock.now() + LEASE_S
        self._peers[transfer] = peer
        try:
            yield
        finally:
            self._lease_ends.pop(transfer, None)
            del self._peers[transfer]
            if not self._peers:
                self._became_empty.set()

    def renew(self, transfer: OutgoingTransfer) -> None:
        """The peer still wants it, unless its lease has run out."""
        if transfer in self._lease_ends:
            self._lease_ends[transfer] = self._clock.now() + LEASE_S

    def peer_of(self, transfer: OutgoingTransfer) -> str:
        """The decode worker that asked for it."""
        return self._peers[transfer]

    def has_lease(self, transfer: OutgoingTransfer) -> bool:
        return transfer in self._lease_ends

    async def wait_until_empty(self) -> None:
        """Return when every transfer has ended."""
        while self._peers:
            self._became_empty.clear()
            await self._became_empty.wait()

    async def sweep(self) -> None:
        """End, until cancelled, what its peer has not renewed in time.

        Each look is at every lease, so that one stuck entry can never hide another.
        """
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            now = self._clock.now()
            expired = [each for each, end_s in self._lease_ends.items() if end_s <= now]
            for transfer in expired:
                del self._lease_ends[transfer]
                transfer.expire()

    def check_integrity(self) -> None:
        """Asserts that every transfer that goes on has one lease, and every lease a transfer."""
        without = [transfer for transfer in self._peers if transfer not in self._lease_ends]
        assert all(transfer.is_over for transfer in without)
        assert len(self._lease_ends) + len(without) == len(self._peers)
        latest_s = self._clock.now() + LEASE_S
        assert all(end_s <= latest_s for end_s in self._lease_ends.values())

"""Finds the transfers of one link whose prefill worker has computed and does not deliver.

A lease begins with the first frame of a transfer and is renewed by each further one. A transfer
that is not the peer's turn, or that waits in line while the link delivers others, does not expire.
"""

from collections.abc import Iterable

from baton.handoff.lease import LEASE_S, RENEW_INTERVAL_S, LeaseTable
from baton.system.clock import Clock
from services.decode_worker.incoming_transfer import IncomingTransfer

# A link that delivered blocks of any transfer in this time is busy: the others wait in line.
BUSY_S = 1.5 * RENEW_INTERVAL_S


class DeliveryWatch:
    """Holds a lease for each of at most `max_transfers` transfers that the peer was heard of."""

    def __init__(self, clock: Clock, max_transfers: int) -> None:
        self._clock = clock
        self._leases: LeaseTable[int] = LeaseTable(
            clock, duration_s=LEASE_S, max_leases=max_transfers
        )
        self._last_delivery_s = clock.now()

    @property
    def is_stuck(self) -> bool:
        """Nothing came for any transfer in a whole lease."""
        return self._silent_s >= LEASE_S

    def delivered(self) -> None:
        """Blocks or a commit came, or memory for more is free again."""
        self._last_delivery_s = self._clock.now()

    def heard_of(self, transfer: IncomingTransfer) -> None:
        """The peer is alive for this transfer."""
        xfer_id = transfer.ticket.xfer_id
        if not self._leases.renew(xfer_id) and self._leases.can_grant():
            self._leases.grant(xfer_id)

    def forget(self, transfer: IncomingTransfer) -> None:
        """The transfer has ended."""
        self._leases.release(transfer.ticket.xfer_id)

    def find_late(self, transfers: Iterable[IncomingTransfer]) -> list[IncomingTransfer]:
        """Those that the peer has let hang for a whole lease; each is named once."""
        open_transfers = {transfer.ticket.xfer_id: transfer for transfer in transfers}
        for transfer in open_transfers.values():
            # Before the first token only the deadline limits compute; before the bind it is our
            # own core that we wait for.
            if self._silent_s < BUSY_S or not transfer.is_waiting_for_peer:
                self.heard_of(transfer)
        return [open_transfers[xfer_id] for xfer_id in self._leases.sweep()]

    @property
    def _silent_s(self) -> float:
        return self._clock.now() - self._last_delivery_s

"""Finds the transfers of one link whose prefill worker has computed and does not deliver.

A lease begins with the first frame of a transfer and is renewed by each further one. A transfer
that is not the peer's turn, or that waits in line while the link delivers others, does not expire.
"""

from collections.abc import Iterable

from baton.handoff.ticket import LEASE_S, RENEW_INTERVAL_S
from baton.system.clock import Clock
from services.decode_worker.incoming_transfer import IncomingTransfer

# A link that delivered blocks of any transfer in this time is busy: the others wait in line.
BUSY_S = 1.5 * RENEW_INTERVAL_S


class DeliveryWatch:
    """Watches the transfers of one link; `heard_at` of each is the peer's last word of it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_delivery_s = clock.now()

    @property
    def is_stuck(self) -> bool:
        """Nothing came for any transfer in a whole lease."""
        return self._silent_s >= LEASE_S

    def delivered(self) -> None:
        """Blocks or a commit came, or memory for more is free again."""
        self._last_delivery_s = self._clock.now()

    def find_late(self, transfers: Iterable[IncomingTransfer]) -> list[IncomingTransfer]:
        """Those that the peer has let hang for a whole lease; each is named once."""
        now, is_busy, late = self._clock.now(), self._silent_s < BUSY_S, []
        for transfer in transfers:
            # Before the first token only the deadline limits compute; before the bind it is our
            # own core that we wait for.
            if is_busy or not transfer.is_waiting_for_peer:
                transfer.heard_at = now
            elif transfer.heard_at is not None and now - transfer.heard_at >= LEASE_S:
                transfer.heard_at = None
                late.append(transfer)
        return late

    @property
    def _silent_s(self) -> float:
        return self._clock.now() - self._last_delivery_s

"""The lines of leases for which their key's minute has no room: first come, first served.

In each key's line only the first lease asks: when the bucket has refilled, and for the tokens that
refill in SLICE_S, so that all in line go on by turns. Leases of other gateways compete with it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from services.gateway.tenants.lease import Lease, extension_share

SLICE_S = 0.1
MIN_SLICE_TOKENS = 64
_MINUTE_S = 60.0
# Another gateway may have taken what had refilled.
_MIN_PAUSE_S = 0.02


@dataclass(slots=True)
class _Line:
    leases: dict[str, Lease] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None

    @property
    def first(self) -> Lease:
        return next(iter(self.leases.values()))

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class ShortageLines:
    """The lines of one gateway, one for each key. `ask` repeats a lease's ask."""

    def __init__(self, ask: Callable[[Lease], None]) -> None:
        self._ask = ask
        self._lines: dict[tuple[str, str], _Line] = {}

    def wait(self, lease: Lease, wait_s: float) -> None:
        """Let a lease wait in line, whose ask would have room in `wait_s`."""
        line = self._lines.setdefault((lease.tenant, lease.key_id), _Line())
        line.leases.setdefault(lease.request_id, lease)
        num_asked = lease.num_wanted
        lease.num_wanted = min(num_asked, lease.num_granted + _slice_of(lease))
        if line.first is lease:
            fits_now = lease.num_wanted < num_asked
            self._ask_later(line, 0.0 if fits_now else max(wait_s, _MIN_PAUSE_S))

    def leave(self, lease: Lease) -> None:
        """Take a lease out of its line, if it is in one; the next asks at once."""
        line = self._lines.get((lease.tenant, lease.key_id))
        if line is None or lease.request_id not in line.leases:
            return
        was_first = line.first is lease
        del line.leases[lease.request_id]
        if was_first:
            line.stop_timer()
        if not line.leases:
            del self._lines[lease.tenant, lease.key_id]
        elif was_first:
            self._ask_later(line, 0.0)

    def _ask_later(self, line: _Line, pause_s: float) -> None:
        line.stop_timer()
        line.timer = asyncio.get_running_loop().call_later(pause_s, self._ask, line.first)


def _slice_of(lease: Lease) -> int:
    """The tokens of one turn: never more than a share of the key's minute."""
    limit = lease.limits.limit_tokens
    refilled = int(limit * SLICE_S / _MINUTE_S)
    return max(refilled, min(MIN_SLICE_TOKENS, extension_share(limit)))

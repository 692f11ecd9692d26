"""The speed of handoffs between zones, by the pair of zones.

Decode workers measure how fast blocks come from each other zone, and all that they measure for one
pair of zones is one mean, in which older measurements weigh less: a worker seldom leaves its zone,
and what it would find there others have found. A speed that has not been measured again for
`speed_trust_s` counts as unknown. Decides nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from baton.system.clock import Clock
from services.router.fleet.reported import FarHandoff

MAX_PAIRS = 1024
# The share of the newest measurement in the mean.
_NEW_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """The speed of handoffs from one zone to another; 0 = not known."""

    bytes_per_s: float = 0.0
    least_s: float = 0.0


_UNKNOWN = LinkSpeed()


class ZoneLinks:
    """The measured speeds between zones."""

    def __init__(self, clock: Clock, trust_s: float) -> None:
        self._clock = clock
        self._trust_s = trust_s
        # By (prefill zone, decode zone): the speed, and when it was measured last.
        self._links: dict[tuple[str, str], tuple[LinkSpeed, float]] = {}

    def between(self, prefill_zone: str, decode_zone: str) -> LinkSpeed | None:
        """The speed from one zone to another; None within a zone, and where one is not known."""
        if prefill_zone == decode_zone or not prefill_zone or not decode_zone:
            return None
        speed, measured_at = self._links.get((prefill_zone, decode_zone), (_UNKNOWN, 0.0))
        return speed if self._clock.now() - measured_at <= self._trust_s else _UNKNOWN

    def note(self, decode_zone: str, old: Sequence[FarHandoff], new: Sequence[FarHandoff]) -> None:
        """Take in a worker's report: a speed that differs from its last one was measured again."""
        if not decode_zone:
            return
        for handoff in new:
            if handoff not in old and handoff.zone != decode_zone:
                self._mix((handoff.zone, decode_zone), handoff)

    def _mix(self, pair: tuple[str, str], handoff: FarHandoff) -> None:
        known = self.between(*pair) or _UNKNOWN
        self._links.pop(pair, None)
        speed = LinkSpeed(
            _mixed(known.bytes_per_s, handoff.bytes_per_s),
            _mixed(known.least_s, handoff.least_s),
        )
        self._links[pair] = (speed, self._clock.now())
        if len(self._links) > MAX_PAIRS:
            del self._links[next(iter(self._links))]


def _mixed(old: float, new: float) -> float:
    if not old or not new:
        return new or old
    return old + _NEW_SHARE * (new - old)

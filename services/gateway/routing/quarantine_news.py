"""What routers refuse because it killed cores, kept for those that do not know it.

Only the active router hears of deaths. It tells every gateway in its view, and each pick at another
one, or at one that has started again, brings along what that one's view lacks. So two cores are all
that a request can kill while one gateway lives that heard of it. Decides nothing: routers refuse.
"""

from collections import OrderedDict
from dataclasses import dataclass

from baton.system.clock import Clock
from baton.wire.limits import MIN_QUARANTINE_S
from baton.wire.v1 import router_pb2

# Beyond this, those that were heard first are forgotten.
MAX_ENTRIES = 1024


@dataclass(frozen=True, slots=True)
class _Entry:
    expires_at: float
    software_version: str


@dataclass(frozen=True, slots=True)
class _View:
    """What one router said last."""

    fingerprints: frozenset[bytes]
    software_version: str

    def lacks(self, fingerprint: bytes, software_version: str) -> bool:
        """Whether it would take it in: what is of another version it would not."""
        return software_version == self.software_version and fingerprint not in self.fingerprints


class QuarantineNews:
    """One gateway's; bounded. Routers are known by their addresses."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._views: dict[str, _View] = {}

    def hear(self, router: str, view: router_pb2.WatchAdmissionResponse) -> None:
        """Take in what a router says in its view."""
        now = self._clock.now()
        self._views[router] = _View(
            frozenset(row.fingerprint for row in view.quarantined), view.software_version
        )
        for row in view.quarantined:
            entry = self._entries.get(row.fingerprint)
            if (
                entry is None
                or entry.expires_at < now
                or entry.software_version != row.software_version
            ):
                self._entries.pop(row.fingerprint, None)
                self._entries[row.fingerprint] = _Entry(now + row.left_s, row.software_version)
        while len(self._entries) > MAX_ENTRIES:
            self._entries.popitem(last=False)

    def lose(self, router: str) -> None:
        """It has stopped speaking; its next life knows nothing."""
        self._views.pop(router, None)

    def attach(self, router: str, request: router_pb2.PickRequest) -> None:
        """Put into a pick at this router what it has not said itself."""
        view, now = self._views.get(router), self._clock.now()
        del request.quarantined[:]
        request.quarantined.extend(
            router_pb2.Quarantined(
                fingerprint=fingerprint,
                left_s=entry.expires_at - now,
                software_version=entry.software_version,
            )
            for fingerprint, entry in self._entries.items()
            if entry.expires_at - now >= MIN_QUARANTINE_S
            and (view is None or view.lacks(fingerprint, entry.software_version))
        )

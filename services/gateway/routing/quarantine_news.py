"""The routers' quarantine, kept for routers that do not know it.

A router hears of cores' deaths from gateways and from its peers. It reports its quarantine to every
gateway in its view. Each pick at another router, or at one that has started again, brings along the
entries that its view lacks. So a request can kill at most two cores while one gateway lives that
heard of it. Decides nothing: routers refuse.
"""

from collections import OrderedDict
from dataclasses import dataclass

from baton.system.clock import Clock
from baton.wire.limits import MIN_QUARANTINE_S
from baton.wire.v1 import router_pb2

# Beyond this the entries that were heard first are forgotten.
MAX_ENTRIES = 1024


@dataclass(frozen=True, slots=True)
class _Entry:
    expires_at: float
    software_version: str


@dataclass(frozen=True, slots=True)
class _View:
    """The quarantine in the last view of one router."""

    fingerprints: frozenset[bytes]
    software_version: str

    def lacks(self, fingerprint: bytes, software_version: str) -> bool:
        """True when the router would take the entry in; it takes none of another version."""
        return software_version == self.software_version and fingerprint not in self.fingerprints


class QuarantineNews:
    """The quarantine as one gateway knows it; bounded. Routers are known by their addresses."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._views: dict[str, _View] = {}
        # False until a first entry is heard of: nothing can be attached.
        self.has_entries = False

    def hear(self, router: str, view: router_pb2.WatchAdmissionResponse) -> None:
        """Take in the quarantine in a router's view."""
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
        self.has_entries = bool(self._entries)

    def lose(self, router: str) -> None:
        """Forget the view of a router that has stopped speaking: its next life knows nothing."""
        self._views.pop(router, None)

    def attach(self, router: str, request: router_pb2.PickRequest) -> None:
        """Put into a pick at this router the entries that its own view lacks."""
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

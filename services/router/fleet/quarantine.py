"""The quarantine of requests that kill cores: no client can end one core after another.

Gateways count the deaths of their own requests and tell them with each pick. What is kept here lets
a repeat of a suspect begin as a suspect, and refuses whatever has killed two cores, for a while or
until workers of another version come. Knows neither prompts nor tenants: the fingerprint is an HMAC
under the gateways' secret. What is refused is told to the gateways, and they tell routers that do
not know it (`gateway/routing/quarantine_news.py`): neither the next router nor one that starts
again learns it at the cost of two more cores. Routers tell each other of suspects at once.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from baton.runtime import logs
from baton.system.clock import Clock
from baton.wire.failures import InvalidRequest
from baton.wire.limits import MAX_DEATHS, MIN_QUARANTINE_S
from baton.wire.v1 import router_pb2
from services.router import instruments

QUARANTINE_S = 600.0
# With more entries than this the oldest are forgotten.
MAX_FINGERPRINTS = 4096
MAX_FINGERPRINT_BYTES = 64
MAX_VERSIONS = 64
# At most this many entries stand in a view: the newest.
MAX_REPORTED = 256

_log = logs.get("router.quarantine")


@dataclass(frozen=True, slots=True)
class _Entry:
    num_deaths: int
    expires_at: float


class Quarantine:
    """A bounded table of entries; those that expire first stand first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Only this class changes them.
        self.entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._versions: set[str] = set()
        self.newest_version = ""

    def __len__(self) -> int:
        return len(self.entries)

    def admit(self, fingerprint: bytes, num_deaths: int, request_id: str) -> bool:
        """Note the deaths that a pick reports of its request; returns whether that is a suspect.

        Raises InvalidRequest `request_quarantined` for a request that has killed too many cores.
        """
        self._expire()
        known = self.entries.get(fingerprint)
        if num_deaths and fingerprint and len(fingerprint) <= MAX_FINGERPRINT_BYTES:
            known = self._note(fingerprint, num_deaths, request_id)
        if max(num_deaths, known.num_deaths if known else 0) >= MAX_DEATHS:
            raise InvalidRequest(
                "this request has ended two engine processes; it is refused for "
                f"{QUARANTINE_S / 60:.0f} minutes",
                reason="request_quarantined",
            )
        return bool(num_deaths or known)

    def suspect(self, fingerprint: bytes, num_deaths: int) -> None:
        """Take over the deaths that another router was told of."""
        if num_deaths and 0 < len(fingerprint) <= MAX_FINGERPRINT_BYTES:
            self._enter(fingerprint, num_deaths)

    def clear(self, fingerprints: Iterable[bytes]) -> None:
        """Forget suspects that have proved harmless; requests in quarantine stay there."""
        for fingerprint in fingerprints:
            known = self.entries.get(fingerprint)
            if known is not None and known.num_deaths < MAX_DEATHS:
                del self.entries[fingerprint]

    def greet(self, software_version: str) -> None:
        """Note the version of a worker that registered; a new version ends all entries."""
        if software_version in self._versions:
            return
        if self._versions:
            self.entries.clear()
        if len(self._versions) == MAX_VERSIONS:
            self._versions.clear()
        self._versions.add(software_version)
        self.newest_version = software_version

    def reported(self) -> list[router_pb2.Quarantined]:
        """The refused fingerprints, for the view."""
        self._expire()
        now = self._clock.now()
        reported = [
            router_pb2.Quarantined(
                fingerprint=fingerprint,
                left_s=entry.expires_at - now,
                software_version=self.newest_version,
            )
            for fingerprint, entry in self.entries.items()
            if entry.num_deaths >= MAX_DEATHS and entry.expires_at - now >= MIN_QUARANTINE_S
        ]
        return reported[-MAX_REPORTED:]

    def learn(self, reported: Iterable[router_pb2.Quarantined]) -> None:
        """Take over what another router refuses, unless it is of another version."""
        now = self._clock.now()
        news = {
            row.fingerprint: _Entry(MAX_DEATHS, now + min(row.left_s, QUARANTINE_S))
            for row in reported
            if row.software_version == self.newest_version
            and 0 < len(row.fingerprint) <= MAX_FINGERPRINT_BYTES
            and not self._refuses(row.fingerprint)
        }
        if news:
            entries = {**self.entries, **news}
            in_order = sorted(entries.items(), key=lambda item: item[1].expires_at)
            self.entries = OrderedDict(in_order[-MAX_FINGERPRINTS:])

    def _refuses(self, fingerprint: bytes) -> bool:
        known = self.entries.get(fingerprint)
        return known is not None and known.num_deaths >= MAX_DEATHS

    def _note(self, fingerprint: bytes, num_deaths: int, request_id: str) -> _Entry:
        if num_deaths >= MAX_DEATHS and not self._refuses(fingerprint):
            instruments.ROUTER_QUARANTINED.inc()
            _log.error("request_quarantined", request_id=request_id)
        return self._enter(fingerprint, num_deaths)

    def _enter(self, fingerprint: bytes, num_deaths: int) -> _Entry:
        known = self.entries.pop(fingerprint, None)
        most = max(num_deaths, known.num_deaths if known else 0)
        entry = _Entry(most, self._clock.now() + QUARANTINE_S)
        self.entries[fingerprint] = entry
        if len(self.entries) > MAX_FINGERPRINTS:
            self.entries.popitem(last=False)
        return entry

    def _expire(self) -> None:
        now = self._clock.now()
        while self.entries and next(iter(self.entries.values())).expires_at <= now:
            self.entries.popitem(last=False)

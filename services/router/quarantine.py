"""Requests that kill cores: remembered by fingerprint, so that no client can walk the fleet.

Gateways count the deaths of their own requests and tell them with each pick. What is kept here lets
a repeat of a suspect begin as a suspect, and refuses whatever has killed two cores, for a while or
until workers of another version come. Knows neither prompts nor tenants: the fingerprint is an HMAC
under the gateways' secret. One router's memory; the next one learns at the cost of two cores more.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from baton.runtime import instruments, logs
from baton.system.clock import Clock
from baton.wire.failures import InvalidRequest

MAX_DEATHS = 2
QUARANTINE_S = 600.0
# Beyond this, the oldest are forgotten.
MAX_FINGERPRINTS = 4096
MAX_FINGERPRINT_BYTES = 64
MAX_VERSIONS = 64

_log = logs.get("router.quarantine")


@dataclass(frozen=True, slots=True)
class _Entry:
    num_deaths: int
    expires_at: float


class Quarantine:
    """Bounded; all entries live equally long, the oldest first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._versions: set[str] = set()

    def __len__(self) -> int:
        return len(self._entries)

    def admit(self, fingerprint: bytes, num_deaths: int, request_id: str) -> bool:
        """Take in what a pick tells of its request; returns whether that is a suspect.

        Raises InvalidRequest `request_quarantined` for one that has killed too many cores.
        """
        self._expire()
        known = self._entries.get(fingerprint)
        if num_deaths and fingerprint and len(fingerprint) <= MAX_FINGERPRINT_BYTES:
            known = self._note(fingerprint, num_deaths, request_id)
        if max(num_deaths, known.num_deaths if known else 0) >= MAX_DEATHS:
            raise InvalidRequest(
                "this request has ended two engine processes; it is refused for "
                f"{QUARANTINE_S / 60:.0f} minutes",
                reason="request_quarantined",
            )
        return bool(num_deaths or known)

    def clear(self, fingerprints: Iterable[bytes]) -> None:
        """These suspects have proved harmless; what is in quarantine stays there."""
        for fingerprint in fingerprints:
            known = self._entries.get(fingerprint)
            if known is not None and known.num_deaths < MAX_DEATHS:
                del self._entries[fingerprint]

    def greet(self, software_version: str) -> None:
        """A worker of this version registered: a new one gets another chance."""
        if software_version in self._versions:
            return
        if self._versions:
            self._entries.clear()
        if len(self._versions) == MAX_VERSIONS:
            self._versions.clear()
        self._versions.add(software_version)

    def _note(self, fingerprint: bytes, num_deaths: int, request_id: str) -> _Entry:
        known = self._entries.pop(fingerprint, None)
        if num_deaths >= MAX_DEATHS and (known is None or known.num_deaths < MAX_DEATHS):
            instruments.ROUTER_QUARANTINED.inc()
            _log.error("request_quarantined", request_id=request_id)
        most = max(num_deaths, known.num_deaths if known else 0)
        entry = _Entry(most, self._clock.now() + QUARANTINE_S)
        self._entries[fingerprint] = entry
        if len(self._entries) > MAX_FINGERPRINTS:
            self._entries.popitem(last=False)
        return entry

    def _expire(self) -> None:
        now = self._clock.now()
        while self._entries and next(iter(self._entries.values())).expires_at <= now:
            self._entries.popitem(last=False)

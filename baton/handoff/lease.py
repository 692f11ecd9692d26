"""Leases (decision 0019): what is held for a peer that may be gone has an owner and an expiry.

A lease lives `duration_s` from its grant or last renewal. A sweep looks at every lease, so that one
stuck entry can never hide another. Knows nothing of what a lease protects.
"""

from typing import Generic, TypeVar

from baton.system.clock import Clock

LEASE_S = 5.0
RENEW_INTERVAL_S = 1.0
SWEEP_INTERVAL_S = 0.5

K = TypeVar("K")


class LeaseTable(Generic[K]):
    """Expiry times by key; holds at most `max_leases`."""

    def __init__(self, clock: Clock, *, duration_s: float = LEASE_S, max_leases: int) -> None:
        assert duration_s > 0
        assert max_leases > 0
        self._clock = clock
        self._duration_s = duration_s
        self._max_leases = max_leases
        self._expires_s: dict[K, float] = {}

    def __len__(self) -> int:
        return len(self._expires_s)

    def __contains__(self, key: K) -> bool:
        return key in self._expires_s

    def can_grant(self) -> bool:
        return len(self._expires_s) < self._max_leases

    def grant(self, key: K) -> None:
        """Start a lease. The key must be new, and there must be room."""
        assert key not in self._expires_s, "a lease is granted once"
        assert self.can_grant(), "ask can_grant() first"
        self._expires_s[key] = self._clock.now() + self._duration_s

    def renew(self, key: K) -> bool:
        """Extend a lease from now on; False when there is none (it expired or was released)."""
        if key not in self._expires_s:
            return False
        self._expires_s[key] = self._clock.now() + self._duration_s
        return True

    def release(self, key: K) -> bool:
        """End a lease; False when there was none."""
        return self._expires_s.pop(key, None) is not None

    def sweep(self) -> list[K]:
        """Remove every expired lease and return their keys."""
        now = self._clock.now()
        expired = [key for key, expires_s in self._expires_s.items() if expires_s <= now]
        for key in expired:
            del self._expires_s[key]
        return expired

    def check_integrity(self) -> None:
        """Asserts the bound, and that no lease reaches further than one duration ahead."""
        assert len(self._expires_s) <= self._max_leases
        latest = self._clock.now() + self._duration_s
        assert all(expires_s <= latest for expires_s in self._expires_s.values())

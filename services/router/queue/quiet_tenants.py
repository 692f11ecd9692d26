"""The tenants that take much less than others: a busy fleet keeps some room for them.

The order of the line alone lets a tenant that comes back wait until some answer ends. So a tenant
with a large share leaves a few batch slots free (`pick/kept_room.py`), as long as there are tenants
with a small one. Shares are of the service of the last half minute to minute.
"""

from baton.system.clock import Clock

WINDOW_S = 30.0
# Shares are looked at that often.
LOOK_S = 1.0
# A tenant is quiet that had less than this share of the mean of all tenants.
QUIET_SHARE = 0.5
# With more requests that wait it has a backlog, too.
MAX_WAITING = 2


class QuietTenants:
    """The service of the tenants of one priority in the last two windows."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._served_s: dict[str, float] = {}
        self._served_before_s: dict[str, float] = {}
        self._window_since = self._looked_at = clock.now()
        self._others: frozenset[str] = frozenset()
        self._is_any = False

    def charge(self, tenant: str, seconds: float) -> None:
        """Count the service of a request, already divided by its tenant's weight."""
        self._look()
        self._served_s[tenant] = self._served_s.get(tenant, 0.0) + seconds

    def is_any(self) -> bool:
        """Return whether a tenant that was served lately is quiet."""
        self._look()
        return self._is_any

    def is_quiet(self, tenant: str) -> bool:
        """Return whether this tenant had little or nothing lately."""
        self._look()
        return tenant not in self._others

    def _look(self) -> None:
        now = self._clock.now()
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        if now - self._window_since >= 2 * WINDOW_S:
            self._window_since, self._served_before_s, self._served_s = now, {}, {}
        served = dict(self._served_before_s)
        for tenant, seconds in self._served_s.items():
            served[tenant] = served.get(tenant, 0.0) + seconds
        limit_s = QUIET_SHARE * sum(served.values()) / max(1, len(served))
        self._others = frozenset(each for each, had_s in served.items() if had_s >= limit_s)
        self._is_any = len(self._others) < len(served)
        if now - self._window_since >= WINDOW_S:
            self._window_since = now
            self._served_before_s, self._served_s = self._served_s, {}

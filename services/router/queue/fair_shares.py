"""The service that the tenants of one priority have received: who has had least goes next.

A virtual counter for each tenant ("Fairness in Serving Large Language Models", OSDI 2024), in
seconds of the engines, divided by the tenant's weight. Of two tenants for which requests wait all
the time, the counters differ by one request at most. A tenant that comes back is lifted to the
least of those that wait: it has no claim on the time in which it asked for nothing, and what it
had while nobody waited is not held against it.
"""

MAX_IDLE_TENANTS = 4096


class FairShares:
    """The counters of the tenants; `join` and `leave` say for which of them requests wait."""

    def __init__(self) -> None:
        self._served_s: dict[str, float] = {}
        self._waiting: set[str] = set()
        # The least counter of the tenants that wait, as it was when the last of them was served.
        self._floor_s = 0.0

    def served_s(self, tenant: str) -> float:
        """The tenant's counter."""
        return max(self._served_s.get(tenant, 0.0), self._floor_s if self._is_idle(tenant) else 0.0)

    def join(self, tenant: str) -> None:
        """Note that requests of this tenant wait from now on."""
        self._lift(tenant)
        self._waiting.add(tenant)

    def leave(self, tenant: str) -> None:
        """Note that no request of this tenant waits any more."""
        self._waiting.discard(tenant)
        if len(self._served_s) > MAX_IDLE_TENANTS + len(self._waiting):
            self._forget()

    def charge(self, tenant: str, seconds: float) -> None:
        """Count the service of a request, already divided by its tenant's weight."""
        self._lift(tenant)
        if not self._waiting:
            self._floor_s = max(self._floor_s, self._served_s[tenant])
        self._served_s[tenant] += seconds
        self._floor_s = max(self._floor_s, self._least_s())

    def _lift(self, tenant: str) -> None:
        if self._is_idle(tenant):
            least_s = self._least_s()
            self._served_s[tenant] = max(self._served_s.get(tenant, 0.0), least_s)

    def _least_s(self) -> float:
        """The counter to which a tenant is lifted that comes now."""
        return min((self._served_s[tenant] for tenant in self._waiting), default=self._floor_s)

    def _is_idle(self, tenant: str) -> bool:
        return tenant not in self._waiting

    def _forget(self) -> None:
        """Forget the tenants that would be lifted anyway."""
        least_s = self._least_s()
        self._served_s = {
            tenant: served_s
            for tenant, served_s in self._served_s.items()
            if tenant in self._waiting or served_s > least_s
        }

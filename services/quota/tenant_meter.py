"""Counts per tenant, for dashboards and alerts: a bounded number of tenants by name.

A label of Prometheus is kept for good, so the first `max_tenants` that a process meets get their
own and all others share one. Bills are the usage archive's work, not this one's: a counter starts
at zero with its process.
"""

from baton.wire.v1 import quota_pb2
from services.quota import instruments

# Not a name that a tenant can have.
OTHERS = "(others)"


class TenantMeter:
    """What tenants ask for and use, on the metrics page."""

    def __init__(self, max_tenants: int) -> None:
        """0 shows no tenant by name."""
        self._max_tenants = max_tenants
        self._named: set[str] = set()

    def reserved(self, tenant: str, outcome: str) -> None:
        """One answered reservation: `granted`, or what had no room."""
        instruments.QUOTA_TENANT_REQUESTS.labels(self._label(tenant), outcome).inc()

    def settled(self, usage: quota_pb2.UsageRecord) -> None:
        """One bill, once."""
        tokens = instruments.QUOTA_TENANT_TOKENS
        tenant = self._label(usage.tenant)
        tokens.labels(tenant, "prompt").inc(usage.num_prompt_tokens)
        tokens.labels(tenant, "cached").inc(usage.num_cached_tokens)
        tokens.labels(tenant, "output").inc(usage.num_output_tokens)

    def _label(self, tenant: str) -> str:
        if tenant not in self._named:
            if len(self._named) >= self._max_tenants:
                return OTHERS
            self._named.add(tenant)
        return tenant

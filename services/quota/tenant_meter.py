"""Counts per tenant, for dashboards and alerts: a bounded number of tenants by name.

Prometheus keeps a label for good, so the first `max_tenants` tenants of a process get their own and
all others share one. The usage archive is what bills are made from, not these counters: they begin
at zero with their process.
"""

from baton.wire.v1 import quota_pb2
from services.quota import instruments

# The parentheses keep it apart from the names of tenants.
OTHERS = "(others)"


class TenantMeter:
    """Counts the reservations, the tokens and the engine time of tenants."""

    def __init__(self, max_tenants: int) -> None:
        """With `max_tenants` 0 all tenants share one label."""
        self._max_tenants = max_tenants
        self._named: set[str] = set()

    def reserved(self, tenant: str, outcome: str) -> None:
        """Count an answered reservation."""
        instruments.QUOTA_TENANT_REQUESTS.labels(self._label(tenant), outcome).inc()

    def settled(self, usage: quota_pb2.UsageRecord) -> None:
        """Count what a usage record has; not called for a repeated settle."""
        tokens = instruments.QUOTA_TENANT_TOKENS
        tenant = self._label(usage.tenant)
        tokens.labels(tenant, "prompt").inc(usage.num_prompt_tokens)
        tokens.labels(tenant, "cached").inc(usage.num_cached_tokens)
        tokens.labels(tenant, "output").inc(usage.num_output_tokens)
        seconds, engine = instruments.QUOTA_TENANT_ENGINE_SECONDS, usage.engine
        wasted_us = engine.cancelled_us + engine.migrated_us + engine.preempted_us
        seconds.labels(tenant, "prefill").inc(engine.prefill_us / 1e6)
        seconds.labels(tenant, "decode").inc(engine.decode_us / 1e6)
        seconds.labels(tenant, "wasted").inc(wasted_us / 1e6)

    def _label(self, tenant: str) -> str:
        if tenant not in self._named:
            if len(self._named) >= self._max_tenants:
                return OTHERS
            self._named.add(tenant)
        return tenant

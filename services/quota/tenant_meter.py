"""Counts of what tenants reserve and use."""

from dataclasses import dataclass
from typing import Self

from prometheus_client import Counter

from baton.wire.v1 import quota_pb2
from services.quota import instruments

# The tenants without a label of their own; the parentheses keep it apart from names of tenants.
OTHERS = "(others)"


@dataclass(frozen=True, slots=True)
class _UsageSeries:
    """The counters of one tenant's settled usage."""

    prompt: Counter
    cached: Counter
    output: Counter
    prefill: Counter
    decode: Counter
    wasted: Counter

    @classmethod
    def of(cls, label: str) -> Self:
        tokens, seconds = instruments.QUOTA_TENANT_TOKENS, instruments.QUOTA_TENANT_ENGINE_SECONDS
        return cls(
            *(tokens.labels(label, kind) for kind in ("prompt", "cached", "output")),
            *(seconds.labels(label, kind) for kind in ("prefill", "decode", "wasted")),
        )


class TenantMeter:
    """Counts per tenant, for dashboards and alerts: a bounded number of tenants by name.

    Prometheus keeps a label for good, so the first `max_tenants` tenants of a process get their own
    and all others share one. The usage archive is what bills are made from, not these counters:
    they begin at zero with their process.
    """

    def __init__(self, max_tenants: int) -> None:
        """With `max_tenants` 0 all tenants share one label."""
        self._max_tenants = max_tenants
        self._named: set[str] = set()
        # By label: looking a series up costs more than counting.
        self._reserved: dict[tuple[str, str], Counter] = {}
        self._settled: dict[str, _UsageSeries] = {}

    def reserved(self, tenant: str, outcome: str) -> None:
        """Count an answered reservation."""
        labels = self._label(tenant), outcome
        if labels not in self._reserved:
            self._reserved[labels] = instruments.QUOTA_TENANT_REQUESTS.labels(*labels)
        self._reserved[labels].inc()

    def settled(self, usage: quota_pb2.UsageRecord) -> None:
        """Count what a usage record has; not called for a repeated settle."""
        label, engine = self._label(usage.tenant), usage.engine
        if label not in self._settled:
            self._settled[label] = _UsageSeries.of(label)
        series = self._settled[label]
        wasted_us = engine.cancelled_us + engine.migrated_us + engine.preempted_us
        for counter, amount in (
            (series.prompt, usage.num_prompt_tokens),
            (series.cached, usage.num_cached_tokens),
            (series.output, usage.num_output_tokens),
            (series.prefill, engine.prefill_us / 1e6),
            (series.decode, engine.decode_us / 1e6),
            (series.wasted, wasted_us / 1e6),
        ):
            if amount:
                counter.inc(amount)

    def _label(self, tenant: str) -> str:
        if tenant not in self._named:
            if len(self._named) >= self._max_tenants:
                return OTHERS
            self._named.add(tenant)
        return tenant

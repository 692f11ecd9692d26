"""Metrics of the quota service."""

from prometheus_client import Counter

from baton.runtime.instruments import Series
from services.quota.outcomes import SCRIPT_NAMES, RenewOutcome, ReserveOutcome, SettleOutcome

QUOTA_RESERVATIONS = Counter(
    "baton_quota_reservations",
    "Reservations by outcome: granted; requests, tokens, concurrency, budget (no room), "
    "restoring (a hard budget after Redis was lost), exceeds_tokens (never fits); unknown_key, "
    "revoked_key, used_request_id",
    ("outcome",),
)
QUOTA_RENEWALS = Counter(
    "baton_quota_renewals",
    "Renewed leases by state: held, short, refused, lost, unknown_key",
    ("state",),
)
QUOTA_SETTLES = Counter(
    "baton_quota_settles",
    "Settles by outcome: settled, repeated, unknown (never reserved here, debited in full), "
    "unknown_key (not settled)",
    ("outcome",),
)
QUOTA_LAPSED_LEASES = Counter("baton_quota_lapsed_leases", "Expired leases that the reaper closed")
QUOTA_STORE_FAILURES = Counter(
    "baton_quota_store_failures", "Calls that Redis did not answer or refused", ("call",)
)
QUOTA_REGISTRY_LOADS = Counter(
    "baton_quota_registry_loads",
    "Loads of the registry file, by outcome: loaded, unusable",
    ("outcome",),
)
QUOTA_ARCHIVED_RECORDS = Counter(
    "baton_quota_archived_records",
    "Usage records taken from Redis, by outcome: written, repeated, rejected",
    ("outcome",),
)
QUOTA_TENANT_REQUESTS = Counter(
    "baton_quota_tenant_requests",
    "Reservations by tenant and outcome; tenants beyond BATON_QUOTA_METERED_TENANTS share a label",
    ("tenant", "outcome"),
)
QUOTA_TENANT_TOKENS = Counter(
    "baton_quota_tenant_tokens",
    "Settled tokens by tenant and kind: prompt, cached (a part of prompt), output",
    ("tenant", "kind"),
)

QUOTA_TENANT_ENGINE_SECONDS = Counter(
    "baton_quota_tenant_engine_seconds",
    "Settled time of engines by tenant and kind: prefill, decode, wasted (a part of both)",
    ("tenant", "kind"),
)

_STORE_CALLS = (
    *SCRIPT_NAMES, "pipeline",
    "DEL", "GET", "HMGET", "HSET", "INFO", "PEXPIRE", "SADD", "SCARD", "SET", "SISMEMBER",
    "SMEMBERS", "SPOP", "XRANGE",
)  # fmt: skip

KNOWN_SERIES: Series = {
    QUOTA_RESERVATIONS: [(outcome,) for outcome in ReserveOutcome],
    QUOTA_RENEWALS: [(outcome,) for outcome in RenewOutcome],
    QUOTA_SETTLES: [(outcome,) for outcome in SettleOutcome],
    QUOTA_STORE_FAILURES: [(call,) for call in _STORE_CALLS],
    QUOTA_REGISTRY_LOADS: [("loaded",), ("unusable",)],
    QUOTA_ARCHIVED_RECORDS: [("written",), ("repeated",), ("rejected",)],
}

"""Metrics of the router."""

from enum import StrEnum

from prometheus_client import Counter, Gauge, Histogram

from baton.runtime.instruments import Series


class PickOutcome(StrEnum):
    """How a pick ended; a refused one ends with the reason of its failure instead."""

    PAIR = "pair"  # a prefill and a decode worker
    LOCAL = "local"  # a decode worker alone
    CANCELLED = "cancelled"  # by the gateway


ROUTER_QUEUE_REQUESTS = Gauge(
    "baton_router_queue_requests", "Requests that wait for a pick", ("model_name",)
)
ROUTER_QUEUE_SECONDS = Histogram(
    "baton_router_queue_seconds",
    "Time from the arrival of a pick to its answer",
    ("model_name",),
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
ROUTER_PICKS = Counter(
    "baton_router_picks",
    "Picks by outcome: pair, local, or the reason of the refusal",
    ("model_name", "outcome"),
)
ROUTER_PROMPT_TOKENS = Counter(
    "baton_router_prompt_tokens", "Prompt tokens of the requests placed", ("model_name",)
)
ROUTER_PREDICTED_CACHED_TOKENS = Counter(
    "baton_router_predicted_cached_tokens",
    "Prompt tokens that the chosen workers are expected to have cached",
    ("model_name",),
)
ROUTER_INDEX_HASHES = Gauge(
    "baton_router_index_hashes", "Prefix hashes in the index, over all workers", ("model_name",)
)
ROUTER_INDEX_EVICTED = Counter(
    "baton_router_index_evicted",
    "Prefix hashes that left the index, oldest of their worker first, for newer ones",
)
ROUTER_INDEX_DRIFTS = Counter(
    "baton_router_index_drifts",
    "Digests that proved the index of a worker wrong; it is built anew beside the old one",
    ("model_name",),
)
ROUTER_REPORTS_DROPPED = Counter(
    "baton_router_reports_dropped", "Irregular worker reports, by cause: repeat, gap", ("cause",)
)
ROUTER_READY_WORKERS = Gauge(
    "baton_router_ready_workers", "Workers that may be picked", ("model_name", "role")
)
ROUTER_EJECTIONS = Counter(
    "baton_router_ejections",
    "Ejections of workers, by cause: stalled, silent, failing",
    ("model_name", "cause"),
)
ROUTER_QUARANTINED = Counter(
    "baton_router_quarantined_requests",
    "Requests quarantined because they killed two cores",
)
ROUTER_QUEUED_PREFILL_TOKENS = Gauge(
    "baton_router_queued_prefill_tokens",
    "Uncached prompt tokens that wait for or are in prefill",
    ("model_name", "role"),
)
ROUTER_QUEUED_PREFILL_SECONDS = Gauge(
    "baton_router_queued_prefill_seconds",
    "Time that a pool's ready workers need for its queued prefill tokens at their measured rates",
    ("model_name", "role"),
)

KNOWN_SERIES: Series = {ROUTER_REPORTS_DROPPED: [("repeat",), ("gap",)]}

"""Metrics that every process exports, and the buckets that several services share.

A service declares its own metrics in its `instruments.py` (both workers: `baton/worker`), under the
names that vLLM dashboards and autoscalers already know where there are any, and `baton_*`
elsewhere. docs/telemetry.md lists them. Labels are bounded: model names that exist, reasons, roles;
never request ids or anything that a client chooses freely, and tenants only where their number is
bounded.
"""

from collections.abc import Iterable, Mapping

from prometheus_client import Counter

# Counters with the label values that are known beforehand.
Series = Mapping[Counter, Iterable[tuple[str, ...]]]

# Seconds from a cancel to its end, at a worker and at the gateway.
CANCEL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10)

AUDIT_VIOLATIONS = Counter(
    "baton_audit_violations", "Invariants that were violated, by check", ("check",)
)
SPANS_DROPPED = Counter(
    "baton_spans_dropped",
    "Spans that reached no collector, by cause: queue_full, not_exported",
    ("reason",),
)

KNOWN_SERIES: Series = {SPANS_DROPPED: [("queue_full",), ("not_exported",)]}


def begin_known(series: Series) -> None:
    """Let these series, and those of every process, begin at 0.

    `rate` and `increase` see only the growth of a series. They would miss the event with which a
    series begins, and for alerts on rare events that is the only one.
    """
    for counter, labels in (*KNOWN_SERIES.items(), *series.items()):
        for values in labels:
            counter.labels(*values)

"""Metrics that every process exports, and the buckets that several services share.

A service declares its own metrics in its `instruments.py` (both workers: `baton/worker`), under the
names that vLLM dashboards and autoscalers already know where there are any, and `baton_*`
elsewhere. docs/telemetry.md lists them. Labels are bounded: model names that exist, reasons, roles;
never request ids or anything that a client chooses freely, and tenants only where their number is
bounded.
"""

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from prometheus_client import REGISTRY, Counter
from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.samples import Exemplar

# Counters with the label values that are known beforehand.
Series = Mapping[Counter, Iterable[tuple[str, ...]]]

# Seconds from a cancel to its end, at a worker and at the gateway.
CANCEL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10)


@dataclass(slots=True)
class Tally:
    """Observations of one series: how many in each bucket, the last of which has no bound.

    One event loop counts: a search in `bounds` and two additions.
    """

    bounds: Sequence[float]
    counts: list[int]
    total: float = 0.0
    # The latest of each bucket, where there is one.
    exemplars: dict[int, Exemplar] = field(default_factory=dict)

    def observe(self, value: float, exemplar: dict[str, str] | None = None) -> None:
        """Count one observation; `exemplar` says which trace is an example of it."""
        bucket = bisect_left(self.bounds, value)
        self.counts[bucket] += 1
        self.total += value
        if exemplar is not None:
            self.exemplars[bucket] = Exemplar(exemplar, value, time.time())


class TallyHistogram(Collector):
    """A histogram for what is observed thousands of times a second.

    prometheus_client's own takes two locks and 3 us for each observation. A scrape in another
    thread may see one that is not complete; the next sees it.
    """

    _type = "histogram"

    def __init__(
        self,
        name: str,
        documentation: str,
        labelnames: tuple[str, ...],
        *,
        buckets: Sequence[float],
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        # Under the names that prometheus_client's own metrics have them.
        self._name, self._documentation, self._labelnames = name, documentation, labelnames
        self._buckets = buckets
        self._tallies: dict[tuple[str, ...], Tally] = {}
        registry.register(self)

    def labels(self, *values: str) -> Tally:
        """The series with these labels."""
        tally = self._tallies.get(values)
        if tally is None:
            tally = self._tallies[values] = Tally(self._buckets, [0] * (len(self._buckets) + 1))
        return tally

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """The family of all series, for a scrape."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labelnames)
        bounds = [*(str(float(bound)) for bound in self._buckets), "+Inf"]
        for values, tally in list(self._tallies.items()):
            counts, examples = accumulate(tally.counts), tally.exemplars.copy()
            buckets: list[Any] = [
                (bound, count, examples.get(number))
                for number, (bound, count) in enumerate(zip(bounds, counts, strict=True))
            ]
            family.add_metric(values, buckets, tally.total)
        yield family


AUDIT_VIOLATIONS = Counter(
    "baton_audit_violations", "Invariants that were violated, by check", ("check",)
)
SPANS_DROPPED = Counter(
    "baton_spans_dropped",
    "Spans that reached no collector, by cause: queue_full, not_exported, not_kept",
    ("reason",),
)

KNOWN_SERIES: Series = {SPANS_DROPPED: [("queue_full",), ("not_exported",), ("not_kept",)]}


def begin_known(series: Series) -> None:
    """Let these series, and those of every process, begin at 0.

    `rate` and `increase` see only the growth of a series. They would miss the event with which a
    series begins, and for alerts on rare events that is the only one.
    """
    for counter, labels in (*KNOWN_SERIES.items(), *series.items()):
        for values in labels:
            counter.labels(*values)

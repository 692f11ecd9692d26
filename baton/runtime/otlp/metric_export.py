"""The metrics page, sent to a collector now and then, where OTEL_METRICS_EXPORTER=otlp asks for it.

The page stays the only truth: each export reads it as a scrape does. So series have the names that
they have there, but for those of OpenTelemetry's own conventions, which have dots again.
"""

import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise

from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import REGISTRY
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import CollectorRegistry
from prometheus_client.samples import Sample

from baton.runtime import logs
from baton.runtime.otlp.channel import exporter_options
from baton.runtime.otlp.service_resource import service_resource

_CUMULATIVE = AggregationTemporality.CUMULATIVE
_INTERVAL_MS = 60_000
# A process that ends waits for so long for its last export.
_LEAVE_S = 2.0
# The conventions' names, whose dots a page cannot have.
_DOTTED = {
    "gen_ai_server_request_duration_seconds": "gen_ai.server.request.duration",
    "gen_ai_server_time_to_first_token_seconds": "gen_ai.server.time_to_first_token",
    "gen_ai_server_time_per_output_token_seconds": "gen_ai.server.time_per_output_token",
    "gen_ai_operation_name": "gen_ai.operation.name",
    "gen_ai_provider_name": "gen_ai.provider.name",
    "gen_ai_request_model": "gen_ai.request.model",
    "error_type": "error.type",
}

_log = logs.get("metric_export")
Labels = tuple[tuple[str, str], ...]


class MetricExport:
    """Exports a registry until it is shut down, in a thread of its own."""

    def __init__(
        self,
        service: str,
        exporter: MetricExporter | None = None,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        """Raises SettingsError, ValueError."""
        self._exporter = exporter or OTLPMetricExporter(**exporter_options())
        self._registry = registry
        self._resource = service_resource(service)
        self._started_ns = time.time_ns()
        interval_ms = int(os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", _INTERVAL_MS))
        if interval_ms <= 0:
            raise ValueError("OTEL_METRIC_EXPORT_INTERVAL: expected milliseconds above 0")
        self._interval_s = interval_ms / 1000
        self._is_failing = False
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metric_export", daemon=True)
        self._thread.start()

    def shutdown(self) -> None:
        """Export once more, for LEAVE_S at most, and stop."""
        self._leaving.set()
        self._thread.join(_LEAVE_S)
        self._exporter.shutdown()

    def _run(self) -> None:
        while not self._leaving.wait(self._interval_s):
            self._export()
        self._export()

    def _export(self) -> None:
        data = metrics_data(self._registry.collect(), self._resource, self._started_ns)
        result = self._exporter.export(data, timeout_millis=_LEAVE_S * 1000)
        was_failing, self._is_failing = self._is_failing, result is not MetricExportResult.SUCCESS
        if self._is_failing and not was_failing:
            _log.warning("metrics_not_exported")
        elif was_failing and not self._is_failing:
            _log.info("metrics_exported_again")


def metrics_data(families: Iterable[Family], resource: Resource, started_ns: int) -> MetricsData:
    """The families of a page in OpenTelemetry's form."""
    times = started_ns, time.time_ns()
    metrics = [made for family in families if (made := _metric(family, times)) is not None]
    scope = ScopeMetrics(InstrumentationScope("baton"), metrics, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _metric(family: Family, times: tuple[int, int]) -> Metric | None:
    name = _DOTTED.get(family.name, family.name)
    unit = "s" if family.name.endswith("_seconds") else ""
    if family.type == "histogram":
        points = list(_histograms(family, times))
        data: Histogram | Sum | Gauge = Histogram(points, _CUMULATIVE)
    elif family.type == "counter":
        name = f"{name}_total"
        data = Sum(list(_numbers(family, "_total", times)), _CUMULATIVE, is_monotonic=True)
    elif family.type in ("gauge", "unknown"):
        data = Gauge(list(_numbers(family, "", times)))
    else:
        return None
    return Metric(name, family.documentation, unit, data) if data.data_points else None


def _numbers(family: Family, suffix: str, times: tuple[int, int]) -> Iterator[NumberDataPoint]:
    for sample in family.samples:
        if sample.name == family.name + suffix:
            yield NumberDataPoint(_attributes(sample), *times, sample.value)


def _histograms(family: Family, times: tuple[int, int]) -> Iterator[HistogramDataPoint]:
    buckets: dict[Labels, list[Sample]] = defaultdict(list)
    sums: dict[Labels, float] = {}
    for sample in family.samples:
        labels = tuple((key, value) for key, value in sample.labels.items() if key != "le")
        if sample.name.endswith("_bucket"):
            buckets[labels].append(sample)
        elif sample.name.endswith("_sum"):
            sums[labels] = sample.value
    for labels, samples in buckets.items():
        counts = [0, *(int(sample.value) for sample in samples)]
        yield HistogramDataPoint(
            attributes=_attributes(samples[0]),
            start_time_unix_nano=times[0],
            time_unix_nano=times[1],
            count=counts[-1],
            sum=sums.get(labels, 0.0),
            bucket_counts=[high - low for low, high in pairwise(counts)],
            explicit_bounds=[float(sample.labels["le"]) for sample in samples[:-1]],
            # The page does not know them. The encoder leaves out what is None.
            min=None,  # type: ignore[arg-type]
            max=None,  # type: ignore[arg-type]
            exemplars=[_exemplar(sample) for sample in samples if sample.exemplar],
        )


def _exemplar(sample: Sample) -> Exemplar:
    found = sample.exemplar
    assert found is not None
    return Exemplar(
        filtered_attributes={"baton.request_id": found.labels.get("request_id", "")},
        value=found.value,
        time_unix_nano=int(float(found.timestamp or 0) * 1e9),
        span_id=int(found.labels["span_id"], 16),
        trace_id=int(found.labels["trace_id"], 16),
    )


def _attributes(sample: Sample) -> dict[str, str]:
    pairs = sample.labels.items()
    return {_DOTTED.get(key, key): value for key, value in pairs if key != "le" and value}

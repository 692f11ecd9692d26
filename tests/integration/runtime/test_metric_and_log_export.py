"""Spans, metrics and logs of one request at a real OTLP receiver, which find it by the same id."""

from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from prometheus_client import CollectorRegistry, Counter, Gauge

from baton.runtime import logs, telemetry
from baton.runtime.instruments import TallyHistogram
from baton.runtime.otlp.channel import is_exported
from baton.runtime.otlp.log_export import LogExport
from baton.runtime.otlp.metric_export import MetricExport

SECONDS = "gen_ai_server_request_duration_seconds"


class Receiver(
    trace_service_pb2_grpc.TraceServiceServicer,
    metrics_service_pb2_grpc.MetricsServiceServicer,
    logs_service_pb2_grpc.LogsServiceServicer,
):
    """Keeps what comes. All three services call their method Export."""

    def __init__(self) -> None:
        self.seen: dict[type, Any] = {}

    def Export(self, request: Any, context: Any) -> Any:
        self.seen[type(request)] = request
        name = type(request).__name__.replace("Request", "Response")
        modules = (trace_service_pb2, metrics_service_pb2, logs_service_pb2)
        return next(getattr(module, name)() for module in modules if hasattr(module, name))


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    server = grpc.server(futures.ThreadPoolExecutor(2))
    receiver = Receiver()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(receiver, server)
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(receiver, server)
    logs_service_pb2_grpc.add_LogsServiceServicer_to_server(receiver, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    yield receiver
    server.stop(0)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    telemetry.setup("test")


def attributes_of(pairs: Any) -> dict[str, str]:
    return {pair.key: pair.value.string_value for pair in pairs}


def test_one_request_is_found_by_its_id_in_spans_metrics_and_logs(receiver: Receiver) -> None:
    registry = CollectorRegistry()
    labels = ("gen_ai_operation_name", "error_type")
    seconds = TallyHistogram(SECONDS, "Time", labels, buckets=(0.1, 1), registry=registry)
    Counter("baton_things", "Things", ("kind",), registry=registry).labels("a").inc(3)
    Gauge("vllm:num_requests_running", "Running", registry=registry).set(2)
    telemetry.setup("gateway")
    metric_export = MetricExport("gateway", registry=registry)
    log_export = LogExport("gateway")

    span = telemetry.start_span("chat demo", request_id="req_7")
    example = {"trace_id": span.trace_id, "span_id": span.span_id, "request_id": "req_7"}
    seconds.labels("chat", "").observe(0.5, example)
    logs.get("access").warning("request", request_id="req_7", trace_id=span.trace_id, status=200)
    span.end()
    for export in (telemetry, metric_export, log_export):
        export.shutdown()

    (spans,) = receiver.seen[trace_service_pb2.ExportTraceServiceRequest].resource_spans
    (measured,) = receiver.seen[metrics_service_pb2.ExportMetricsServiceRequest].resource_metrics
    (told,) = receiver.seen[logs_service_pb2.ExportLogsServiceRequest].resource_logs
    identities = [attributes_of(each.resource.attributes) for each in (spans, measured, told)]
    assert identities[0] == identities[1] == identities[2]
    assert identities[0]["service.name"] == "baton-gateway"

    (sent,) = spans.scope_spans[0].spans
    (line,) = told.scope_logs[0].log_records
    assert attributes_of(line.attributes)["baton.request_id"] == "req_7"
    assert (line.body.string_value, line.trace_id) == ("request", sent.trace_id)

    metrics = {metric.name: metric for metric in measured.scope_metrics[0].metrics}
    assert metrics["baton_things_total"].sum.is_monotonic
    assert metrics["baton_things_total"].sum.data_points[0].as_double == 3
    assert metrics["vllm:num_requests_running"].gauge.data_points[0].as_double == 2
    (point,) = metrics["gen_ai.server.request.duration"].histogram.data_points
    assert metrics["gen_ai.server.request.duration"].unit == "s"
    assert attributes_of(point.attributes) == {"gen_ai.operation.name": "chat"}
    assert (point.count, point.sum, list(point.bucket_counts)) == (1, 0.5, [0, 1, 0])
    assert list(point.explicit_bounds) == [0.1, 1]
    (exemplar,) = point.exemplars
    assert (exemplar.trace_id, exemplar.span_id) == (sent.trace_id, sent.span_id)
    assert not point.HasField("min")
    assert attributes_of(exemplar.filtered_attributes) == {"baton.request_id": "req_7"}


@pytest.mark.parametrize("signal", ["metrics", "logs"])
def test_an_exporter_that_is_none_of_ours_is_refused(
    signal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = f"OTEL_{signal.upper()}_EXPORTER"
    assert not is_exported(signal)
    for wrong in ("console", "otlp"):  # the second one has no collector
        monkeypatch.setenv(variable, wrong)
        with pytest.raises(ValueError, match=variable):
            is_exported(signal)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    assert is_exported(signal)

"""The Jaeger of the chart after as many traces as a busy day has."""

import json
import os
import time
import urllib.request
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub

from tests.cluster.release import Release
from tests.cluster.table import Row
from tests.cluster.test_clients import forwarded
from tests.kit.kube.real_cluster import wait_until

NUM_REQUESTS, NUM_AT_ONCE = 50_000, 200
# As a request with a handoff has.
NUM_SPANS = 16
ATTRIBUTES = {f"baton.attribute_{number}": "x" * 24 for number in range(8)}
SERVICE = "one-of-many"


def test_jaeger_answers_after_50_000_requests(release: Release) -> None:
    (pod,) = release.namespace.pods("jaeger")
    target = f"svc/{release.fullname}-jaeger"
    with forwarded(release, target, 4317) as port:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = TraceServiceStub(channel)
            for _ in range(NUM_REQUESTS // NUM_AT_ONCE):
                stub.Export(traces(NUM_AT_ONCE), timeout=60, wait_for_ready=True)
    with forwarded(release, target, 16686) as port:
        api = f"http://127.0.0.1:{port}/api"
        wait_until(lambda: SERVICE in asked(f"{api}/services"), "its services", 60)
        (newest,) = asked(f"{api}/traces?service={SERVICE}&limit=1")
    assert len(newest["spans"]) == NUM_SPANS
    (status,) = release.namespace.get("pod", pod)["status"]["containerStatuses"]
    assert (status["ready"], status["restartCount"]) == (True, 0)
    case = f"{NUM_REQUESTS:,} traces of {NUM_SPANS} spans to the chart's Jaeger"
    release.rows.append(Row(case, 1, NUM_REQUESTS, 0, 0, "still answers"))


def traces(count: int) -> ExportTraceServiceRequest:
    """So many requests, each a trace of its own."""
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    group.resource.attributes.add(key="service.name").value.string_value = SERVICE
    spans = group.scope_spans.add().spans
    for _ in range(count):
        trace_id = os.urandom(16)
        for _ in range(NUM_SPANS):
            span = spans.add(trace_id=trace_id, span_id=os.urandom(8), name="attempt")
            span.start_time_unix_nano = time.time_ns()
            span.end_time_unix_nano = span.start_time_unix_nano + 1_000_000
            for key, value in ATTRIBUTES.items():
                span.attributes.add(key=key).value.string_value = value
    return request


def asked(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.load(answer)["data"] or []

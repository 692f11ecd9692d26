import asyncio
import re
import time
from importlib.metadata import version

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from baton.runtime import telemetry
from baton.runtime.otlp.service_resource import resource_text, service_resource
from baton.testing.virtual_clock import VirtualClock
from baton.wire.failures import LimitExceeded, Overloaded


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    exporter = InMemorySpanExporter()
    telemetry.setup("test", SimpleSpanProcessor(exporter))
    yield exporter
    telemetry.setup("test")


def test_remote_parent_and_request_id_tie_spans_together(spans: InMemorySpanExporter) -> None:
    with telemetry.start_span("outer", request_id="r1") as outer:
        with telemetry.start_span("inner", traceparent=outer.traceparent, request_id="r1"):
            pass
    inner, parent = spans.get_finished_spans()
    assert inner.parent.span_id == parent.context.span_id
    assert {span.attributes["baton.request_id"] for span in (inner, parent)} == {"r1"}


def test_a_failure_marks_the_span_with_its_reason(spans: InMemorySpanExporter) -> None:
    with pytest.raises(Overloaded), telemetry.start_span("work"):
        raise Overloaded("full")
    (span,) = spans.get_finished_spans()
    assert span.attributes["error.type"] == "overloaded"


def test_what_is_refused_or_given_up_in_order_is_no_error(spans: InMemorySpanExporter) -> None:
    for error in (LimitExceeded("too much"), asyncio.CancelledError()):
        with pytest.raises(type(error)), telemetry.start_span("work"):
            raise error
    for span, reason in zip(
        spans.get_finished_spans(), ("rate_limit_exceeded", "cancelled"), strict=True
    ):
        assert span.status.status_code is StatusCode.UNSET
        assert span.attributes["baton.refused"] == reason


def test_a_kept_root_has_the_ids_that_were_passed_on(
    spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    telemetry.setup("test", SimpleSpanProcessor(spans))
    unsampled = telemetry.start_span("root")
    telemetry.kept_root("chat", unsampled, request_id="r1", start_s=time.monotonic() - 5).end()
    (span,) = spans.get_finished_spans()
    _, trace_id, span_id, _ = unsampled.traceparent.split("-")
    assert (span.context.trace_id, span.context.span_id) == (int(trace_id, 16), int(span_id, 16))
    assert (span.parent, span.kind) == (None, SpanKind.SERVER)
    assert span.end_time - span.start_time == pytest.approx(5e9, rel=0.2)
    # Later spans have ids of their own again.
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "1")
    telemetry.setup("test", SimpleSpanProcessor(spans))
    assert telemetry.start_span("other").trace_id != trace_id


def test_a_span_links_others_but_nothing_that_is_no_trace(spans: InMemorySpanExporter) -> None:
    with telemetry.start_span("work") as span:
        span.link("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "lost")
        span.link("xyz", "lost")
        span.link("", "lost")
    (link,) = spans.get_finished_spans()[0].links
    assert link.context.trace_id == 0x0AF7651916CD43DD8448EB211C80319C
    assert link.attributes == {"baton.link": "lost"}


def test_a_process_says_who_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.namespace=prod,k8s.pod.name=p-0")
    own = service_resource("decode_worker").attributes
    assert own["service.name"] == "baton-decode-worker"
    assert (own["service.namespace"], own["k8s.pod.name"]) == ("prod", "p-0")
    assert own["service.version"] == version("baton-serving-core")
    assert own["service.instance.id"]
    # For a program that is not ours: all but its name, which its configuration says.
    assert "service.name=" not in resource_text("envoy")
    assert "k8s.pod.name=p-0" in resource_text("envoy").split(",")


def test_without_an_exporter_nothing_is_recorded_but_context_travels() -> None:
    telemetry.setup("test")
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    span = telemetry.start_span("x", traceparent=parent)
    assert telemetry.start_span("y", parent=span).traceparent == parent
    assert not span.is_recorded


def test_a_root_that_is_not_sampled_is_passed_on_and_nothing_is_built(
    spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    telemetry.setup("test", SimpleSpanProcessor(spans))
    with telemetry.start_span("root") as root, telemetry.start_span("x", parent=root) as below:
        assert below.traceparent == root.traceparent
        with telemetry.start_span("remote", traceparent=root.traceparent) as remote:
            assert remote.traceparent == root.traceparent
    assert re.fullmatch("00-[0-9a-f]{32}-[0-9a-f]{16}-00", root.traceparent)
    assert not spans.get_finished_spans()


@pytest.mark.parametrize("trace_id", ["0" * 32, "xyz"])
def test_a_span_below_a_trace_context_that_is_none_is_drawn_as_a_root(
    trace_id: str, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    telemetry.setup("test", SimpleSpanProcessor(spans))
    with telemetry.start_span("x", traceparent=f"00-{trace_id}-b7ad6b7169203331-01") as span:
        assert span.traceparent.endswith("-00")
    assert not spans.get_finished_spans()


@pytest.mark.parametrize("ratio", ["2", "-1", "nan", "often"])
def test_a_ratio_that_is_none_is_refused(ratio: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", ratio)
    with pytest.raises(ValueError, match=r"ratio|float"):
        telemetry.setup("test")


def test_below_a_span_that_is_not_sampled_none_is_built(spans: InMemorySpanExporter) -> None:
    unsampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
    with telemetry.start_span("outer", traceparent=unsampled) as outer:
        assert outer.traceparent == unsampled
    assert not spans.get_finished_spans()


def test_stages_are_contiguous_and_add_up_to_the_wall_time() -> None:
    clock = VirtualClock()
    timer = telemetry.StageTimer(clock)
    for name, seconds in [("auth", 0.1), ("decode", 2.0), ("auth", 0.4)]:
        clock.advance(seconds)
        timer.mark(name)
    assert timer.stages == pytest.approx({"auth": 0.5, "decode": 2.0})
    assert sum(timer.stages.values()) == pytest.approx(timer.wall_s)
    assert [stage.duration_us for stage in timer.to_wire()] == [500_000, 2_000_000]

import re

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from baton.runtime import telemetry
from baton.testing.virtual_clock import VirtualClock
from baton.wire.failures import Overloaded


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

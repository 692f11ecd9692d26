"""What a process says of a collector that takes no spans: when that begins, and when it ends."""

import logging
from collections.abc import Iterator, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from baton.runtime.span_export import SpanExport


class Collector(SpanExporter):
    """Logs as OpenTelemetry's own exporter does."""

    def __init__(self) -> None:
        self.refuses_with = ""
        self._log = logging.getLogger("opentelemetry.exporter.otlp.proto.grpc.exporter")

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if not self.refuses_with:
            return SpanExportResult.SUCCESS
        self._log.warning("Transient error, retrying")
        self._log.error("Failed to export, error details: %s", self.refuses_with)
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        pass


@pytest.fixture
def collector() -> Collector:
    return Collector()


@pytest.fixture
def provider(collector: Collector) -> Iterator[TracerProvider]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SpanExport(collector))
    yield provider
    provider.shutdown()


def export_one(provider: TracerProvider) -> None:
    provider.get_tracer("test").start_span("work").end()
    provider.force_flush()


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_an_outage_is_two_lines_however_long_it_is(
    collector: Collector, provider: TracerProvider, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        export_one(provider)
        assert said(caplog) == []
        collector.refuses_with = "wrong token"
        for _ in range(3):
            export_one(provider)
        assert said(caplog) == ["spans_not_exported"]
        collector.refuses_with = ""
        for _ in range(2):
            export_one(provider)
    assert said(caplog) == ["spans_not_exported", "spans_exported_again"]


def test_the_line_says_what_the_collector_said(
    collector: Collector, provider: TracerProvider, caplog: pytest.LogCaptureFixture
) -> None:
    collector.refuses_with = "wrong token"
    export_one(provider)
    (record,) = caplog.records
    assert "wrong token" in record.baton_fields["reason"]  # type: ignore[attr-defined]

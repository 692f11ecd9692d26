"""A collector that takes no spans: the log lines of its outage, and the wait at a process's end."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from baton.runtime.otlp.span_export import MAX_BATCH, SpanExport


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


class Timers:
    """Stands for `threading.Timer`: time passes only when the test lets it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.started = threading.Event()
        self._due: list[tuple[float, Callable[[], None]]] = []

    def __call__(self, interval_s: float, function: Callable[[], None]) -> "Timers":
        self._due.append((self.now_s + interval_s, function))
        return self

    def start(self) -> None:
        self.started.set()

    def cancel(self) -> None:
        self._due.clear()

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        due = [each for each in self._due if each[0] <= self.now_s]
        self._due = [each for each in self._due if each not in due]
        for _, function in due:
            function()


class SilentCollector(SpanExporter):
    """Answers no export: each lasts ten minutes, or until the exporter is closed."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._is_closed = False
        self.num_exports = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        assert self._timers.started.wait(60), "the process ends"
        self.num_exports += 1
        gives_up_s = self._timers.now_s + 600
        while not self._is_closed and self._timers.now_s < gives_up_s:
            self._timers.pass_time(0.125)
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self._is_closed = True


def test_the_end_of_a_process_waits_two_seconds_for_a_collector_that_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timers = Timers()
    monkeypatch.setattr(threading, "Timer", timers)
    collector = SilentCollector(timers)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SpanExport(collector))
    for _ in range(3 * MAX_BATCH):
        provider.get_tracer("test").start_span("work").end()
    provider.shutdown()
    assert timers.now_s == 2.0
    assert collector.num_exports == 1, "no batch after the one that was given up"

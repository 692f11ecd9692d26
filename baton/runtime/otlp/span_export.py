"""Spans on their way to a collector that may be slow, dead or refusing.

At most MAX_WAITING spans wait. Further ones are dropped and counted, and no caller ever waits for
the collector. A process that ends gives it LEAVE_S for the rest. Batches, timeouts and retries are
OpenTelemetry's own. Its two log lines for each failed batch are not shown: an outage is one line
when it begins and one when it ends.
"""

import logging
import threading
from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from baton.runtime import instruments, logs

MAX_WAITING = 2048
MAX_BATCH = 512
LEAVE_S = 2.0
_EXPORT_INTERVAL_MS = 500
_EXPORTER_LOG = "opentelemetry.exporter.otlp.proto.grpc.exporter"
_MAX_REASON_CHARS = 300

_log = logs.get("span_export")


class _LastWords(logging.Filter):
    """A log filter that keeps the exporter's last message and lets none through."""

    last = ""

    def filter(self, record: logging.LogRecord) -> bool:
        self.last = record.getMessage()
        return False


_said = _LastWords()


class SpanExport(SpanProcessor):
    """A span processor that owns `exporter`."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._room = threading.Semaphore(MAX_WAITING)
        self._exporter = _CountedExporter(exporter, self._room)
        self._batches = BatchSpanProcessor(
            self._exporter,
            max_queue_size=MAX_WAITING,
            schedule_delay_millis=_EXPORT_INTERVAL_MS,
            max_export_batch_size=MAX_BATCH,
        )

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        pass

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is None or not span.context.trace_flags.sampled:
            return
        if self._room.acquire(blocking=False):
            self._batches.on_end(span)
        else:
            instruments.SPANS_DROPPED.labels("queue_full").inc()

    def shutdown(self) -> None:
        """Export the rest, for LEAVE_S at most."""
        # OpenTelemetry would wait for 30 s. A closed exporter gives up at once.
        giving_up = threading.Timer(LEAVE_S, self._exporter.shutdown)
        giving_up.daemon = True
        giving_up.start()
        try:
            self._batches.shutdown()
        finally:
            giving_up.cancel()

    def force_flush(self, timeout_millis: int | None = None) -> bool:
        return self._batches.force_flush(timeout_millis)


class _CountedExporter(SpanExporter):
    """An exporter that makes room for the spans that it takes and counts those it lost."""

    def __init__(self, exporter: SpanExporter, room: threading.Semaphore) -> None:
        self._exporter = exporter
        self._room = room
        self._is_closed = False
        self._is_failing = False
        logging.getLogger(_EXPORTER_LOG).addFilter(_said)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._room.release(len(spans))
        result = SpanExportResult.FAILURE
        try:
            if not self._is_closed:
                result = self._exporter.export(spans)
                self._log_result(result)
        finally:
            if result is not SpanExportResult.SUCCESS:
                instruments.SPANS_DROPPED.labels("not_exported").inc(len(spans))
        return result

    def _log_result(self, result: SpanExportResult) -> None:
        was_failing, self._is_failing = self._is_failing, result is not SpanExportResult.SUCCESS
        if self._is_failing and not was_failing:
            _log.warning("spans_not_exported", reason=_said.last[:_MAX_REASON_CHARS])
        elif was_failing and not self._is_failing:
            _log.info("spans_exported_again")

    def shutdown(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._exporter.force_flush(timeout_millis)

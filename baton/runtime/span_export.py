"""Spans on their way to a collector that may be slow, dead or refusing.

At most MAX_WAITING spans wait; what comes then is dropped and counted, and no caller ever waits for
the collector. A process that ends gives it LEAVE_S for what is left. Batches, timeouts and retries
are OpenTelemetry's own.
"""

import threading
from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from baton.runtime import instruments

MAX_WAITING = 2048
MAX_BATCH = 512
LEAVE_S = 2.0
_EXPORT_INTERVAL_MS = 500


class SpanExport(SpanProcessor):
    """Takes ended spans, and owns `exporter`."""

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
        """Export what is left, for LEAVE_S at most."""
        # OpenTelemetry would wait for 30 s; closed, its exporter gives up whatever it does.
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
    """Makes room for what it takes, and counts what did not arrive."""

    def __init__(self, exporter: SpanExporter, room: threading.Semaphore) -> None:
        self._exporter = exporter
        self._room = room
        self._is_closed = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._room.release(len(spans))
        result = SpanExportResult.FAILURE
        try:
            if not self._is_closed:
                result = self._exporter.export(spans)
        finally:
            if result is not SpanExportResult.SUCCESS:
                instruments.SPANS_DROPPED.labels("not_exported").inc(len(spans))
        return result

    def shutdown(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._exporter.force_flush(timeout_millis)

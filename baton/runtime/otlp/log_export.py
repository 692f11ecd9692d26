"""Log lines, sent to a collector as well, where OTEL_LOGS_EXPORTER=otlp asks for it.

An event's fields become attributes. Those that spans have too get the same names there, so that one
query finds a request in both; a line that knows its trace is tied to it.
"""

import logging
from typing import Any

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExporter
from opentelemetry.trace import TraceFlags

from baton.runtime import logs
from baton.runtime.otlp.channel import exporter_options
from baton.runtime.otlp.service_resource import service_resource

_SEVERITIES = {
    logging.DEBUG: SeverityNumber.DEBUG,
    logging.INFO: SeverityNumber.INFO,
    logging.WARNING: SeverityNumber.WARN,
    logging.ERROR: SeverityNumber.ERROR,
}
_RENAMED = {
    name: f"baton.{name}" for name in ("request_id", "client_request_id", "tenant", "outcome")
}
# Their own lines would be sent because lines could not be sent.
_EXPORTERS = ("opentelemetry", "grpc")


class LogExport(logging.Handler):
    """A handler of the root logger until it is shut down. A line never waits for the collector: at
    most 2048 do, and further ones are dropped."""

    def __init__(self, service: str, exporter: LogRecordExporter | None = None) -> None:
        """Raises SettingsError."""
        super().__init__()
        self._provider = LoggerProvider(service_resource(service), shutdown_on_exit=False)
        exporter = exporter or OTLPLogExporter(**exporter_options())
        self._provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
        self._logger = self._provider.get_logger("baton")
        logging.getLogger().addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith(_EXPORTERS):
            self._logger.emit(_to_otlp(record))

    def shutdown(self) -> None:
        """Export the rest, and stop."""
        logging.getLogger().removeHandler(self)
        self._provider.shutdown()


def _to_otlp(record: logging.LogRecord) -> LogRecord:
    fields = logs.fields_of(record)
    trace_id = str(fields.pop("trace_id", "") or "0")
    attributes: dict[str, Any] = {
        _RENAMED.get(name, name): value
        if isinstance(value, str | int | float | bool)
        else str(value)
        for name, value in fields.items()
    }
    attributes["logger"] = record.name
    return LogRecord(
        timestamp=int(record.created * 1e9),
        severity_number=_SEVERITIES.get(record.levelno, SeverityNumber.UNSPECIFIED),
        severity_text=record.levelname,
        body=record.getMessage(),
        attributes=attributes,
        trace_id=int(trace_id, 16),
        span_id=0,
        trace_flags=TraceFlags(0),
    )

"""Structured logs: one JSON object a line on stderr, with the request id wherever there is one.

Values are names, numbers and ids; never prompt or output text, keys or tokens. JSON escapes
newlines in values, so that a value cannot forge a line.
"""

import json
import logging
import sys
import time
import traceback
from typing import Any

_FIELDS = "baton_fields"
_encode = json.JSONEncoder(default=str).encode


class _JsonFormatter(logging.Formatter):
    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{whole}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "event": record.getMessage(),
        }
        line.update(fields_of(record))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _encode(line)


class Log:
    """A logger of events. An event is a short constant name; its fields say what happened."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, **fields: object) -> None:
        self._emit(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._emit(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._emit(logging.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        self._emit(logging.ERROR, event, fields)

    def exception(self, event: str, **fields: object) -> None:
        """Log an error with the traceback of the exception that is being handled."""
        self._logger.error(event, exc_info=True, extra={_FIELDS: fields})

    def bug(self, event: str, error: Exception, **fields: object) -> None:
        """Log an error with an exception's kind and places, not its text: that may be a user's."""
        frames = traceback.extract_tb(error.__traceback__)
        places = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        self.error(event, kind=type(error).__name__, places=places, **fields)

    def _emit(self, level: int, event: str, fields: dict[str, object]) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, event, extra={_FIELDS: fields})


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """The fields of an event, in a new dict; of another library's line there are none."""
    return dict(getattr(record, _FIELDS, {}))


def get(name: str) -> Log:
    return Log(name)


def setup(service: str, level: str = "INFO") -> None:
    """Send all records of this process to stderr as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter(service))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # No line has them, and looking them up for each costs as much as the line: the caller's place
    # in the code, the thread, the process.
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    # Below warning these libraries log every connection.
    for noisy in ("grpc", "httpx", "uvicorn", "asyncio", "opentelemetry"):
        logging.getLogger(noisy).setLevel(logging.WARNING)

"""A small local span store: OTLP in, SQLite on disk, bounded. `baton trace` reads it.

It keeps the newest MAX_SPANS spans, and with a bound in bytes no more than fit. It understands only
what Baton's own spans need (names, times, parents, string attributes); a real backend takes the
same OTLP.
"""

import json
import sqlite3
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as OtlpSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

MAX_SPANS = 200_000
_PRUNE_EVERY = 5_000
# Of a file that has grown too large.
_KEPT_SHARE = 0.8
_MAX_JOURNAL_BYTES = 16 * 2**20

_SCHEMA = """
CREATE TABLE IF NOT EXISTS spans (
    trace_id TEXT, span_id TEXT, parent_id TEXT, request_id TEXT, service TEXT, name TEXT,
    start_ns INTEGER, end_ns INTEGER, failed INTEGER, attributes TEXT,
    PRIMARY KEY (trace_id, span_id)
);
CREATE INDEX IF NOT EXISTS spans_by_request ON spans (request_id);
CREATE INDEX IF NOT EXISTS spans_by_service ON spans (service, start_ns);
CREATE INDEX IF NOT EXISTS spans_by_name ON spans (name, start_ns);
CREATE INDEX IF NOT EXISTS spans_by_start ON spans (start_ns);
"""
_INSERT = "INSERT OR REPLACE INTO spans VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
# The span of a whole request, named after its work: the root of its trace, or below Envoy's.
_IS_REQUEST = "service = 'gateway' AND json_extract(attributes, '$.\"baton.outcome\"') IS NOT NULL"
_NAMED_BY_CLIENT = (
    f"SELECT trace_id FROM spans WHERE {_IS_REQUEST} "
    "AND json_extract(attributes, '$.\"baton.client_request_id\"') = ? "
    "ORDER BY start_ns DESC LIMIT 1"
)
_COLUMNS = (
    "trace_id, span_id, parent_id, request_id, service, name, start_ns, end_ns, failed, attributes"
)


@dataclass(frozen=True, slots=True)
class StoredSpan:
    """One finished span. Ids are hex; `parent_id` is empty for a root."""

    trace_id: str
    span_id: str
    parent_id: str
    request_id: str
    service: str
    name: str
    start_ns: int
    end_ns: int
    failed: bool
    attributes: dict[str, str]


class SpanStore:
    """One SQLite file. Several readers may open it while one process writes."""

    def __init__(self, path: Path, max_spans: int = MAX_SPANS, max_bytes: int = 0) -> None:
        """`max_bytes`: of the writer's file; 0 = no bound. One thread at a time may use it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(path, timeout=5, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute(f"PRAGMA journal_size_limit={_MAX_JOURNAL_BYTES}")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.executescript(_SCHEMA)
        self._max_spans = max_spans
        self._max_bytes = max_bytes
        self._num_since_prune = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    def add(self, spans: Iterable[StoredSpan]) -> None:
        """Store spans; a repeated span replaces its first copy."""
        rows = [
            (
                span.trace_id,
                span.span_id,
                span.parent_id,
                span.request_id,
                span.service,
                span.name,
                span.start_ns,
                span.end_ns,
                int(span.failed),
                json.dumps(span.attributes),
            )
            for span in spans
        ]
        with self._db:
            self._db.executemany(_INSERT, rows)
            self._num_since_prune += len(rows)
            if self._num_since_prune >= min(_PRUNE_EVERY, self._max_spans):
                self._num_since_prune = 0
                self._keep_newest(self._max_spans)
            if self._max_bytes and self._used_bytes() > self._max_bytes:
                (count,) = self._db.execute("SELECT count(*) FROM spans").fetchone()
                self._keep_newest(int(count * _KEPT_SHARE))

    def _keep_newest(self, count: int) -> None:
        last = "(SELECT max(rowid) FROM spans)"
        self._db.execute(f"DELETE FROM spans WHERE rowid <= {last} - ?", (count,))

    def _used_bytes(self) -> int:
        """What the spans take of the file; what they left is used again."""
        names = ("page_count", "freelist_count", "page_size")
        pages, free, size = (self._db.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
        return int((pages - free) * size)

    def of_request(self, given_id: str) -> list[StoredSpan]:
        """All spans of all traces in which the request id occurs, by start time; without one, those
        of the latest request that its client calls so."""
        return self._of_traces("SELECT trace_id FROM spans WHERE request_id = ?", given_id) or (
            self._of_traces(_NAMED_BY_CLIENT, given_id)
        )

    def _of_traces(self, trace_ids: str, given_id: str) -> list[StoredSpan]:
        query = f"SELECT {_COLUMNS} FROM spans WHERE trace_id IN ({trace_ids}) ORDER BY start_ns"
        return [_stored(row) for row in self._db.execute(query, (given_id,))]

    def last_requests(self, count: int) -> list[StoredSpan]:
        """The spans of the newest requests, newest first."""
        query = f"SELECT {_COLUMNS} FROM spans WHERE {_IS_REQUEST} ORDER BY start_ns DESC LIMIT ?"
        return [_stored(row) for row in self._db.execute(query, (count,))]

    def requests(self, since_ns: int, min_ns: int, count: int) -> list[StoredSpan]:
        """The spans of the newest requests that began since then and took so long, newest first;
        known by their outcome."""
        query = (
            f"SELECT {_COLUMNS} FROM spans WHERE start_ns >= ? AND end_ns - start_ns >= ? "
            f"AND {_IS_REQUEST} ORDER BY start_ns DESC LIMIT ?"
        )
        return [_stored(row) for row in self._db.execute(query, (since_ns, min_ns, count))]

    def named(self, names: Sequence[str], since_ns: int, count: int) -> list[StoredSpan]:
        """The newest spans of these names that began since then, newest first."""
        query = (
            f"SELECT {_COLUMNS} FROM spans WHERE name IN ({_marks(names)}) AND start_ns >= ? "
            "ORDER BY start_ns DESC LIMIT ?"
        )
        return [_stored(row) for row in self._db.execute(query, (*names, since_ns, count))]

    def named_in(self, trace_ids: Collection[str], names: Sequence[str]) -> list[StoredSpan]:
        """The spans of these names in these traces."""
        query = (
            f"SELECT {_COLUMNS} FROM spans WHERE trace_id IN ({_marks(trace_ids)}) "
            f"AND name IN ({_marks(names)})"
        )
        return [_stored(row) for row in self._db.execute(query, (*trace_ids, *names))]

    def last_request_ids(self, count: int) -> list[str]:
        """Request ids of the newest requests, newest first."""
        return [span.request_id for span in self.last_requests(count)]


def _marks(values: Collection[str]) -> str:
    """A placeholder for each value."""
    return ", ".join("?" * len(values))


def spans_of_export(request: ExportTraceServiceRequest) -> list[StoredSpan]:
    """The spans of one OTLP export call."""
    spans = []
    for group in request.resource_spans:
        service = _own_name(_attributes(group.resource.attributes).get("service.name", "?"))
        for scope in group.scope_spans:
            spans += [_from_otlp(service, span) for span in scope.spans]
    return spans


def _own_name(service: str) -> str:
    """The name of a service of ours within this stack: of baton-decode-worker, decode_worker."""
    own = service.removeprefix("baton-")
    return own if own == service else own.replace("-", "_")


def _from_otlp(service: str, span: OtlpSpan) -> StoredSpan:
    attributes = _attributes(span.attributes)
    return StoredSpan(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        request_id=attributes.pop("baton.request_id", ""),
        service=service,
        name=span.name,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        failed=span.status.code == Status.STATUS_CODE_ERROR,
        attributes=attributes,
    )


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, str]:
    values = {}
    for pair in pairs:
        values[pair.key] = _text(pair.value)
    return values


def _text(value: AnyValue) -> str:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return ",".join(_text(each) for each in value.array_value.values)
    return str(getattr(value, kind)) if kind else ""


def _stored(row: tuple[str, str, str, str, str, str, int, int, int, str]) -> StoredSpan:
    return StoredSpan(*row[:8], failed=bool(row[8]), attributes=json.loads(row[9]))

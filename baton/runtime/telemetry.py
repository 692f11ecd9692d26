"""Hand-made spans with the OpenTelemetry SDK (decision 0024), and the stage times of all requests.

A span is built only when its trace is sampled. Otherwise `start_span` returns a span that records
nothing and still passes the trace context on. Export is OTLP over gRPC, batched, to
`OTEL_EXPORTER_OTLP_ENDPOINT`; without that variable nothing is exported. https:// is TLS, with the
authorities of `OTEL_EXPORTER_OTLP_CERTIFICATE` or the public ones. The headers of
`OTEL_EXPORTER_OTLP_HEADERS` are added (otlp/span_headers.py). Spans carry ids, counts and reasons,
never text. docs/telemetry.md lists names and attributes.

A trace that was not sampled can still be kept by its first process when it ends: `kept_root` builds
the root's span then, under the ids that were passed on meanwhile (decision 0085).
"""

import asyncio
import os
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import ClassVar, Self

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased
from opentelemetry.trace import Link, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from baton.runtime.otlp.channel import endpoint_of, exporter_options
from baton.runtime.otlp.service_resource import service_resource
from baton.runtime.otlp.span_export import SpanExport
from baton.system.clock import Clock
from baton.wire.failures import BatonError
from baton.wire.v1 import failure_pb2

AttributeValue = str | int | float | bool | Sequence[str]

# Of the version that every caller speaks; others are the propagator's to read.
_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})")
# Of HTTP: what is below is the client's fault, or its wish. A server's span is no error for it.
_FIRST_FAILURE = 500
_propagator = TraceContextTextMapPropagator()


class _Ids(RandomIdGenerator):
    """New ids, but for a root that has passed its own on already. One event loop uses it."""

    planned: tuple[int, int] | None = None

    def generate_trace_id(self) -> int:
        return self.planned[0] if self.planned else super().generate_trace_id()

    def generate_span_id(self) -> int:
        return self.planned[1] if self.planned else super().generate_span_id()


class _Tracing:
    """This process's tracer; records nothing until `setup`."""

    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    tracer = provider.get_tracer("baton")
    ids = _Ids()
    # The share of the roots that are sampled.
    ratio = 0.0
    # Spans go somewhere: to an exporter, or to a test's processor.
    is_heard = False
    ends: ClassVar[list[Callable[[], None]]] = []


def setup(service: str, processor: SpanProcessor | None = None) -> None:
    """Configure this process's tracer once. `processor` replaces the OTLP exporter in tests.

    Raises ValueError for a malformed sampling ratio, SettingsError for malformed headers.
    """
    endpoint = endpoint_of()
    ratio = _ratio()
    if not endpoint and processor is None:
        ratio = 0.0
    provider = TracerProvider(
        sampler=ParentBased(ALWAYS_ON),
        resource=service_resource(service),
        shutdown_on_exit=False,
        id_generator=_Tracing.ids,
    )
    if processor is not None:
        provider.add_span_processor(processor)
    elif endpoint:
        provider.add_span_processor(SpanExport(OTLPSpanExporter(**exporter_options())))
    _Tracing.provider = provider
    _Tracing.ratio = ratio
    _Tracing.tracer = provider.get_tracer("baton")
    _Tracing.is_heard = bool(endpoint) or processor is not None


def _ratio() -> float:
    try:
        ratio = float(os.environ.get("OTEL_TRACES_SAMPLER_ARG", "1"))
    except ValueError as error:
        raise ValueError(f"OTEL_TRACES_SAMPLER_ARG: {error}") from None
    if not 0 <= ratio <= 1:
        raise ValueError("OTEL_TRACES_SAMPLER_ARG: expected a ratio between 0 and 1")
    return ratio


def on_shutdown(end: Callable[[], None]) -> None:
    """Let `end` end another export when this one ends."""
    _Tracing.ends.append(end)


def shutdown() -> None:
    """Export what is buffered, within seconds, and stop exporting."""
    _Tracing.provider.shutdown()
    while _Tracing.ends:
        _Tracing.ends.pop()()


class Span:
    """One stage of one request in one process. End it exactly once, or use it as a context.

    Without `span` nothing is recorded, and `traceparent` alone is passed on.
    """

    def __init__(self, span: trace.Span | None, traceparent: str) -> None:
        self._span = span
        # W3C trace context for the next hop.
        self.traceparent = traceparent

    @property
    def is_recorded(self) -> bool:
        """False when nobody will see the span, so that attributes need not be made."""
        return self._span is not None

    @property
    def trace_id(self) -> str:
        """The trace's id in hex, sampled or not; empty without one."""
        return self.traceparent[3:35]

    @property
    def span_id(self) -> str:
        """This span's id in hex; that of the one above where this one is not recorded."""
        return self.traceparent[36:52]

    def set(self, key: str, value: AttributeValue) -> None:
        if self._span is not None:
            self._span.set_attribute(key, value)

    def rename(self, name: str) -> None:
        """Give the span the name that was not known when it started."""
        if self._span is not None:
            self._span.update_name(name)

    def link(self, traceparent: str, relation: str) -> None:
        """Point to another span, which is neither above nor below this one; `relation` says what it
        is to this one."""
        if self._span is not None and (link := _link(traceparent, relation)) is not None:
            self._span.add_link(link.context, link.attributes)

    def fail(self, reason: str) -> None:
        """Mark the span as failed, with the failure's stable reason."""
        if self._span is not None:
            self._span.set_attribute("error.type", reason)
            self._span.set_status(StatusCode.ERROR, reason)

    def refuse(self, reason: str) -> None:
        """Note that this was refused or given up in order: nothing has failed."""
        if self._span is not None:
            self._span.set_attribute("baton.refused", reason)

    def end(self, end_s: float | None = None) -> None:
        """End now, or at the monotonic time `end_s`."""
        if self._span is not None:
            self._span.end(_unix_ns(end_s) if end_s is not None else None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close(kind, error)

    def close(self, kind: type[BaseException] | None, error: BaseException | None) -> None:
        """End now, as the block whose exception this is, if there is one."""
        if isinstance(error, asyncio.CancelledError):
            self.refuse("cancelled")
        elif isinstance(error, BatonError) and error.row.http_status < _FIRST_FAILURE:
            self.refuse(error.reason)
        elif error is not None:
            self.fail(getattr(error, "reason", kind.__name__ if kind else "error"))
        self.end()


def start_span(
    name: str,
    *,
    traceparent: str = "",
    parent: Span | None = None,
    request_id: str = "",
    start_s: float | None = None,
    kind: SpanKind = SpanKind.INTERNAL,
    attributes: Mapping[str, AttributeValue] | None = None,
) -> Span:
    """Start a span below `parent`, or below the remote `traceparent`, or as a root.

    `kind`: CLIENT for a call to another process, SERVER for the answering side of one. `start_s`: a
    monotonic time in the past, of a stage that is reported after it ended.
    """
    if parent is not None:
        if parent._span is None:
            return parent
        above = parent._span
    elif _is_dropped(traceparent):
        return Span(None, traceparent)
    else:
        above = _remote(traceparent) if traceparent else trace.INVALID_SPAN
        if above is trace.INVALID_SPAN and random.random() >= _Tracing.ratio:
            return Span(None, _unsampled_root())
    span = _Tracing.tracer.start_span(
        name,
        context=trace.set_span_in_context(above),
        kind=kind,
        start_time=_unix_ns(start_s) if start_s is not None else None,
        attributes={"baton.request_id": request_id, **(attributes or {})},
    )
    return Span(span if span.is_recording() else None, _traceparent_of(span))


def kept_root(name: str, unsampled: Span, *, request_id: str, start_s: float) -> Span:
    """Start, as its trace's root, the SERVER span that a trace without sampling has not got. Nobody
    else has spans of that trace: its parent, where there is one, was not sampled either."""
    found = _TRACEPARENT.fullmatch(unsampled.traceparent)
    if found is None or not _Tracing.is_heard:
        return Span(None, unsampled.traceparent)
    _, trace_id, span_id, _ = unsampled.traceparent.split("-")
    _Tracing.ids.planned = int(trace_id, 16), int(span_id, 16)
    try:
        span = _Tracing.tracer.start_span(
            name,
            context=trace.set_span_in_context(trace.INVALID_SPAN),
            kind=SpanKind.SERVER,
            start_time=_unix_ns(start_s),
            attributes={"baton.request_id": request_id},
        )
    finally:
        _Tracing.ids.planned = None
    return Span(span, unsampled.traceparent)


def _link(traceparent: str, relation: str) -> Link | None:
    context = _remote(traceparent).get_span_context()
    return Link(context, {"baton.link": relation}) if context.is_valid else None


def _is_dropped(traceparent: str) -> bool:
    """True below a remote span of which nobody will see anything: none need be built."""
    found = _TRACEPARENT.fullmatch(traceparent)
    return found is not None and not (_Tracing.is_heard and int(found[1], 16) & 1)


def _remote(traceparent: str) -> trace.Span:
    """The span of this trace context; INVALID_SPAN when it names none."""
    return trace.get_current_span(_propagator.extract({"traceparent": traceparent}))


def _unsampled_root() -> str:
    """The trace context of a root that nobody will see: the services below build no span either."""
    return f"00-{random.getrandbits(128) or 1:032x}-{random.getrandbits(64) or 1:016x}-00"


def _traceparent_of(span: trace.Span) -> str:
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, trace.set_span_in_context(span))
    return carrier.get("traceparent", "")


def _unix_ns(monotonic_s: float) -> int:
    return time.time_ns() - int((time.monotonic() - monotonic_s) * 1e9)


class StageTimer:
    """Cuts a request's wall time into contiguous stages, which add up to it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.started_s = clock.now()
        self._last_s = self._entered_s = self.started_s
        self.stages: dict[str, float] = {}

    def enter(self) -> None:
        """Note that another stage begins, which `mark` will name."""
        self._entered_s = self._clock.now()

    def mark(self, name: str) -> float:
        """Add the time since the last mark to stage `name`, and return it in seconds."""
        now = self._clock.now()
        spent = now - self._last_s
        self.stages[name] = self.stages.get(name, 0.0) + spent
        self._last_s = now
        return spent

    @property
    def wall_s(self) -> float:
        """The time from the start to the last mark."""
        return self._last_s - self.started_s

    @property
    def age_s(self) -> float:
        """The time from the start until now."""
        return self._clock.now() - self.started_s

    @property
    def stage_age_s(self) -> float:
        """The time since the stage began that runs now."""
        return self._clock.now() - self._entered_s

    def to_wire(self) -> list[failure_pb2.StageTime]:
        return [
            failure_pb2.StageTime(name=name, duration_us=round(seconds * 1e6))
            for name, seconds in self.stages.items()
        ]

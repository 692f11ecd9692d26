"""Hand-made spans with the OpenTelemetry SDK (decision 0024), and the stage times of all requests.

A span is built only when its trace is sampled. Otherwise `start_span` returns a span that records
nothing and still passes the trace context on. Export is OTLP over gRPC, batched, to
`OTEL_EXPORTER_OTLP_ENDPOINT`; without that variable nothing is exported. https:// is TLS, with the
authorities of `OTEL_EXPORTER_OTLP_CERTIFICATE` or the public ones. The headers of
`OTEL_EXPORTER_OTLP_HEADERS` are added (span_headers.py). Spans carry ids, counts and reasons, never
text. docs/telemetry.md lists names and attributes.
"""

import os
import random
import re
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased
from opentelemetry.trace import StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from baton.runtime.span_export import SpanExport
from baton.runtime.span_headers import span_headers
from baton.system.clock import Clock
from baton.wire.v1 import failure_pb2

AttributeValue = str | int | float | bool

# Of the version that every caller speaks; others are the propagator's to read.
_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})")
_propagator = TraceContextTextMapPropagator()


class _Tracing:
    """This process's tracer; records nothing until `setup`."""

    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    tracer = provider.get_tracer("baton")
    # The share of the roots that are sampled.
    ratio = 0.0
    # Spans go somewhere: to an exporter, or to a test's processor.
    is_heard = False


def setup(service: str, processor: SpanProcessor | None = None) -> None:
    """Configure this process's tracer once. `processor` replaces the OTLP exporter in tests.

    Raises ValueError for a malformed sampling ratio, SettingsError for malformed headers.
    """
    endpoint = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    ratio = float(os.environ.get("OTEL_TRACES_SAMPLER_ARG", "1"))
    if not 0 <= ratio <= 1:
        raise ValueError("expected a ratio between 0 and 1")
    if not endpoint and processor is None:
        ratio = 0.0
    provider = TracerProvider(
        sampler=ParentBased(ALWAYS_ON),
        resource=Resource.create({"service.name": service}),
        shutdown_on_exit=False,
    )
    if processor is not None:
        provider.add_span_processor(processor)
    elif endpoint:
        exporter = OTLPSpanExporter(
            endpoint=endpoint,
            insecure=endpoint.startswith("http://"),
            headers=span_headers(os.environ),
            channel_options=_channel_options(endpoint),
        )
        provider.add_span_processor(SpanExport(exporter))
    _Tracing.provider = provider
    _Tracing.ratio = ratio
    _Tracing.tracer = provider.get_tracer("baton")
    _Tracing.is_heard = bool(endpoint) or processor is not None


def _channel_options(endpoint: str) -> Any:
    """Options of the exporter's channel: no proxy to a receiver on this machine."""
    is_local = urlsplit(endpoint).hostname in ("127.0.0.1", "::1", "localhost")
    return (("grpc.enable_http_proxy", 0),) if is_local else None


def shutdown() -> None:
    """Export what is buffered, within seconds, and stop exporting."""
    _Tracing.provider.shutdown()


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

    def set(self, key: str, value: AttributeValue) -> None:
        if self._span is not None:
            self._span.set_attribute(key, value)

    def fail(self, reason: str) -> None:
        """Mark the span as failed, with the failure's stable reason."""
        if self._span is not None:
            self._span.set_attribute("error.type", reason)
            self._span.set_status(StatusCode.ERROR, reason)

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
        if error is not None:
            self.fail(getattr(error, "reason", kind.__name__ if kind else "error"))
        self.end()


def start_span(
    name: str,
    *,
    traceparent: str = "",
    parent: Span | None = None,
    request_id: str = "",
    start_s: float | None = None,
    attributes: Mapping[str, AttributeValue] | None = None,
) -> Span:
    """Start a span below `parent`, or below the remote `traceparent`, or as a root.

    `start_s` is a monotonic time in the past for a stage that is reported after it ended.
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
        start_time=_unix_ns(start_s) if start_s is not None else None,
        attributes={"baton.request_id": request_id, **(attributes or {})},
    )
    return Span(span if span.is_recording() else None, _traceparent_of(span))


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

"""A collector that is dead, silent or refusing costs only its own spans, and they are counted."""

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc

from baton.runtime import instruments, telemetry
from baton.runtime.otlp import span_export

# Several times what may wait.
NUM_SPANS = 4 * span_export.MAX_WAITING
# What the exporter would wait for one batch, and what tells whether anybody waited for that.
EXPORT_TIMEOUT_S, SOON_S = 600, 60.0
# A process that ends gives its collector 2 s; OpenTelemetry's own would wait for 30.
LEFT_S = 10.0


class Silent:
    """Accepts connections, and never says a word."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._open: list[socket.socket] = []
        self.was_struck = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                self._open.append(self._listening.accept()[0])
            except OSError:
                return
            self.was_struck.set()

    def stop(self) -> None:
        # Wakes `accept`.
        self._listening.shutdown(socket.SHUT_RDWR)
        for one in (*self._open, self._listening):
            one.close()


class Refusing(trace_service_pb2_grpc.TraceServiceServicer):
    """Answers every export with an error."""

    def __init__(self) -> None:
        self._server = grpc.server(ThreadPoolExecutor(1))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self.was_struck = threading.Event()
        self._server.start()

    def Export(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.was_struck.set()
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no room")

    def stop(self) -> None:
        self._server.stop(None).wait()


class Dead:
    """Nobody listens."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as was_here:
            self.port = was_here.getsockname()[1]
        self.was_struck = threading.Event()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", self.port))
        self.was_struck.set()

    def stop(self) -> None:
        pass


@contextmanager
def exporting_to(port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", str(EXPORT_TIMEOUT_S))
    telemetry.setup("test")
    try:
        yield
    finally:
        telemetry.shutdown()
        monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
        telemetry.setup("test")


def num_dropped() -> dict[str, float]:
    samples = next(iter(instruments.SPANS_DROPPED.collect())).samples
    return {s.labels["reason"]: s.value for s in samples if s.name.endswith("_total")}


@pytest.mark.parametrize("kind", [Dead, Silent, Refusing])
def test_a_collector_that_takes_nothing_costs_only_its_spans(
    kind: type[Dead | Silent | Refusing],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    collector, before = kind(), num_dropped()
    with exporting_to(collector.port, monkeypatch):
        # Blocked by the collector even once, this would take its whole timeout.
        started_s = time.monotonic()
        for number in range(NUM_SPANS):
            telemetry.start_span("work", request_id=str(number)).end()
        assert collector.was_struck.wait(SOON_S)
        assert time.monotonic() - started_s < SOON_S
        leaving_s = time.monotonic()
    assert time.monotonic() - leaving_s < LEFT_S, "the process ends, with spans in hand"
    collector.stop()
    dropped = {reason: count - before.get(reason, 0) for reason, count in num_dropped().items()}
    assert sum(dropped.values()) == NUM_SPANS, "every span is accounted for"
    assert dropped["queue_full"] > 0
    assert dropped["not_exported"] > 0
    assert [record.getMessage() for record in caplog.records] == ["spans_not_exported"]

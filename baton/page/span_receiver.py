"""The OTLP receiver of a page: stores spans and, if asked, forwards them.

Forwarding (to Jaeger or any collector) never delays storing: a bounded queue, dropped when full. It
goes where and as OpenTelemetry's variables say, like the services' own export elsewhere. Services
have one address for all that they export, so metrics and logs are passed on, too. In a local stack
this is a process of its own, in a cluster a part of the page's.
"""

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from baton.page.span_store import SpanStore, spans_of_export
from baton.runtime import environment, logs
from baton.runtime.grpc_channel import open_outside_channel
from baton.runtime.grpc_server import GrpcServer, start_server
from baton.runtime.otlp.span_headers import span_headers
from baton.runtime.process import Misconfigured, Process, run

MAX_FORWARD_QUEUE = 64
# Exports that wait to be stored; each service has one under way.
MAX_WAITING = 64
_FORWARD_TIMEOUT_S = 5
_RELAYED = (
    "opentelemetry.proto.collector.metrics.v1.MetricsService",
    "opentelemetry.proto.collector.logs.v1.LogsService",
)
_AUTHORITIES = "OTEL_EXPORTER_OTLP_CERTIFICATE"

_log = logs.get("span_receiver")


@dataclass(frozen=True)
class Settings:
    """The receiver's settings; each field is one variable."""

    # Address of its gRPC server for spans (OTLP), host:port.
    listen: str
    # File in which the spans are kept (SQLite).
    store: Path
    # Another collector that gets the same spans, http[s]://host:port; empty = none.
    forward_to: str = ""
    # So large may the file grow; then the oldest spans go. 0 = the newest 200,000 are kept.
    max_bytes: int = 0


class Forwarding:
    """Sends on to another collector; one that is out of reach costs only its own spans."""

    def __init__(self, channel: grpc.aio.Channel, headers: Mapping[str, str]) -> None:
        self._channel = channel
        self._headers = tuple(headers.items())
        self._waiting: asyncio.Queue[ExportTraceServiceRequest] = asyncio.Queue(MAX_FORWARD_QUEUE)

    def add(self, request: ExportTraceServiceRequest) -> None:
        """Send it when its turn comes; dropped when too many wait."""
        with contextlib.suppress(asyncio.QueueFull):
            self._waiting.put_nowait(request)

    async def run(self) -> None:
        """Send until cancelled. Closes the channel."""
        is_failing = False
        async with self._channel:
            stub = trace_service_pb2_grpc.TraceServiceStub(self._channel)
            while True:
                request = await self._waiting.get()
                try:
                    await stub.Export(request, timeout=_FORWARD_TIMEOUT_S, metadata=self._headers)
                    is_failing = False
                except grpc.aio.AioRpcError as error:
                    if not is_failing:
                        _log.warning("forward_failed", code=error.code().name)
                    is_failing = True

    async def relay(self, method: str, message: bytes) -> bytes:
        """The collector's own answer to what is not stored here. Raises AioRpcError."""
        call: Any = self._channel.unary_unary(method)
        answer: bytes = await call(message, timeout=_FORWARD_TIMEOUT_S, metadata=self._headers)
        return answer


class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    """OTLP's TraceService over a SpanStore. Metrics and logs only pass through."""

    def __init__(self, store: SpanStore, forwarding: Forwarding | None = None) -> None:
        self._store = store
        self._forwarding = forwarding
        self._storing = asyncio.Lock()
        self._num_waiting = 0
        self._is_failing = False

    def register(self, server: grpc.aio.Server) -> None:
        """Add the services to a server."""
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, server)
        for service in _RELAYED if self._forwarding else ():
            relay = partial(self._relay, f"/{service}/Export")
            method: Any = grpc.unary_unary_rpc_method_handler(relay)
            handler = grpc.method_handlers_generic_handler(service, {"Export": method})
            server.add_generic_rpc_handlers((handler,))

    async def Export(
        self, request: ExportTraceServiceRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> ExportTraceServiceResponse:
        if self._num_waiting >= MAX_WAITING:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many spans at once")
        if self._forwarding:
            self._forwarding.add(request)
        self._num_waiting += 1
        try:
            async with self._storing:
                await asyncio.to_thread(self._keep, request)
        finally:
            self._num_waiting -= 1
        return ExportTraceServiceResponse()

    def _keep(self, request: ExportTraceServiceRequest) -> None:
        """Store the spans; a disk that takes none costs only these."""
        try:
            self._store.add(spans_of_export(request))
            self._is_failing = False
        except sqlite3.Error as error:
            if not self._is_failing:
                _log.error("spans_not_kept", reason=str(error))
            self._is_failing = True

    async def _relay(
        self, method: str, message: bytes, context: grpc.aio.ServicerContext[Any, Any]
    ) -> bytes:
        assert self._forwarding
        try:
            return await self._forwarding.relay(method, message)
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "")
        raise AssertionError("abort always raises")


def _channel_to(endpoint: str) -> grpc.aio.Channel:
    """A channel that trusts the authorities of OTEL_EXPORTER_OTLP_CERTIFICATE, else the public
    ones. Raises Misconfigured."""
    file = os.environ.get(_AUTHORITIES, "")
    try:
        return open_outside_channel(endpoint, Path(file).read_bytes() if file else None)
    except OSError as error:
        raise Misconfigured(f"{_AUTHORITIES}: {error}") from error


@dataclass(frozen=True, slots=True)
class Receiving:
    """A receiver that listens, with what it stores in and sends through."""

    server: GrpcServer
    store: SpanStore
    forwarding: Forwarding | None

    async def run(self, stopping: asyncio.Event) -> None:
        """Receive, store and forward until `stopping`. Closes everything."""
        with self.store:
            async with asyncio.TaskGroup() as group:
                sending = group.create_task(self.forwarding.run()) if self.forwarding else None
                await stopping.wait()
                await self.server.stop(grace_s=1)
                if sending:
                    sending.cancel()


async def begin(settings: Settings) -> Receiving:
    """Listen. Raises OSError, sqlite3.Error, Misconfigured, SettingsError."""
    forwarding = None
    if settings.forward_to:
        forwarding = Forwarding(_channel_to(settings.forward_to), span_headers(os.environ))
    store = SpanStore(settings.store, max_bytes=settings.max_bytes)
    server = await start_server(settings.listen, Receiver(store, forwarding).register)
    return Receiving(server, store, forwarding)


async def main(process: Process) -> None:
    receiving = await begin(environment.load(Settings, "BATON_SPANS_"))
    await receiving.run(process.stopping)


if __name__ == "__main__":
    run("span-receiver", main)

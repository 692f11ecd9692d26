"""The local OTLP receiver: a process of its own that stores spans and, if asked, forwards them.

Forwarding (to Jaeger or any collector) never delays storing: a bounded queue, dropped when full. It
goes where and as OpenTelemetry's variables say, like the services' own export elsewhere.
"""

import asyncio
import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from baton.localstack.span_store import SpanStore, spans_of_export
from baton.runtime import environment, logs
from baton.runtime.grpc_channel import open_outside_channel
from baton.runtime.grpc_server import start_server
from baton.runtime.otlp.span_headers import span_headers
from baton.runtime.process import Misconfigured, Process, run

MAX_FORWARD_QUEUE = 64
_FORWARD_TIMEOUT_S = 5
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


class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    """OTLP's TraceService over a SpanStore."""

    def __init__(self, store: SpanStore) -> None:
        self._store = store
        self.to_forward: asyncio.Queue[ExportTraceServiceRequest] = asyncio.Queue(MAX_FORWARD_QUEUE)

    async def Export(
        self, request: ExportTraceServiceRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> ExportTraceServiceResponse:
        self._store.add(spans_of_export(request))
        with contextlib.suppress(asyncio.QueueFull):
            self.to_forward.put_nowait(request)
        return ExportTraceServiceResponse()

    async def forward(self, channel: grpc.aio.Channel, headers: dict[str, str]) -> None:
        """Send on the received spans; an unreachable target costs only its own spans."""
        sent, is_failing = tuple(headers.items()), False
        async with channel:
            stub = trace_service_pb2_grpc.TraceServiceStub(channel)
            while True:
                request = await self.to_forward.get()
                try:
                    await stub.Export(request, timeout=_FORWARD_TIMEOUT_S, metadata=sent)
                    is_failing = False
                except grpc.aio.AioRpcError as error:
                    if not is_failing:
                        _log.warning("forward_failed", code=error.code().name)
                    is_failing = True


def _channel_to(endpoint: str) -> grpc.aio.Channel:
    """A channel that trusts the authorities of OTEL_EXPORTER_OTLP_CERTIFICATE, else the public
    ones. Raises Misconfigured."""
    file = os.environ.get(_AUTHORITIES, "")
    try:
        return open_outside_channel(endpoint, Path(file).read_bytes() if file else None)
    except OSError as error:
        raise Misconfigured(f"{_AUTHORITIES}: {error}") from error


async def main(process: Process) -> None:
    settings = environment.load(Settings, "BATON_SPANS_")
    headers = span_headers(os.environ)
    channel = _channel_to(settings.forward_to) if settings.forward_to else None
    with SpanStore(settings.store) as store:
        receiver = Receiver(store)
        server = await start_server(
            settings.listen,
            lambda target: trace_service_pb2_grpc.add_TraceServiceServicer_to_server(
                receiver, target
            ),
        )
        async with asyncio.TaskGroup() as group:
            forwarding = None
            if channel is not None:
                forwarding = group.create_task(receiver.forward(channel, headers))
            await process.stopping.wait()
            await server.stop(grace_s=1)
            if forwarding:
                forwarding.cancel()


if __name__ == "__main__":
    run("span-receiver", main)

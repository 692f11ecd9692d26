"""Spans over OTLP to the local receiver."""

import asyncio
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc

from baton.localstack.span_receiver import Receiver
from baton.localstack.span_store import SpanStore
from baton.runtime import telemetry
from baton.runtime.grpc_server import start_server


async def test_spans_reach_the_local_receiver_past_a_proxy_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with SpanStore(tmp_path / "spans.db") as store:
        receiver = Receiver(store)
        server = await start_server(
            "127.0.0.1:0",
            lambda it: trace_service_pb2_grpc.add_TraceServiceServicer_to_server(receiver, it),
        )
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.port}")
        telemetry.setup("test")
        try:
            telemetry.start_span("work", request_id="r1").end()
            async with asyncio.timeout(10):
                while not store.of_request("r1"):
                    await asyncio.sleep(0.02)
        finally:
            await asyncio.to_thread(telemetry.shutdown)
            monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
            telemetry.setup("test")
            await server.stop(0)

"""Spans over OTLP: to the local receiver, and over TLS to one elsewhere."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from baton.localstack import plan
from baton.localstack.home import Home
from baton.localstack.models import LocalModel
from baton.localstack.supervisor import ServiceSpec
from baton.page.span_receiver import Receiver
from baton.page.span_store import SpanStore
from baton.runtime import telemetry
from baton.runtime.grpc_server import start_server
from baton.testing.certificates import Authority
from tests.integration.runtime.tls_collector import tls_collector


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SpanStore]:
    with SpanStore(tmp_path / "spans.db") as opened:
        yield opened
        telemetry.setup("test")  # which now exports nothing


async def export_one(store: SpanStore) -> None:
    """By what the environment says now; returns when it has arrived."""
    telemetry.setup("test")
    try:
        telemetry.start_span("work", request_id="r1").end()
        async with asyncio.timeout(60):
            while not store.of_request("r1"):
                await asyncio.sleep(0.02)
    finally:
        await asyncio.to_thread(telemetry.shutdown)


async def test_spans_reach_the_local_receiver_past_a_proxy_of_the_environment(
    store: SpanStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = Receiver(store)
    server = await start_server("127.0.0.1:0", receiver.register)
    with monkeypatch.context() as changed:
        changed.setenv("http_proxy", "http://127.0.0.1:9")
        changed.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.port}")
        await export_one(store)
    await server.stop(0)


class Asking(Receiver):
    """Takes spans only from who has its token."""

    async def Export(self, request: Any, context: Any) -> Any:
        if dict(context.invocation_metadata()).get("authorization") != "Bearer a,b":
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")
        return await super().Export(request, context)


async def test_spans_reach_a_collector_that_asks_for_a_token_over_tls(
    store: SpanStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Authority(tmp_path, "theirs").issue(tmp_path / "collector", "IP:127.0.0.1")
    async with tls_collector(Asking(store), files) as port:
        with monkeypatch.context() as changed:
            changed.setenv("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Bearer%20a%2Cb")
            changed.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"https://127.0.0.1:{port}")
            changed.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(files.ca))
            await export_one(store)


async def test_the_local_receiver_stores_and_forwards_whatever_certificates_the_stack_has(
    store: SpanStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = Authority(tmp_path, "theirs").issue(tmp_path / "collector", "IP:127.0.0.1")
    peers = Authority(tmp_path, "ours").issue(tmp_path / "peers")
    stored = tmp_path / "stored.db"
    with monkeypatch.context() as changed:
        # What `baton up` itself was started with.
        for name, value in peers.environment().items():
            changed.setenv(name, value)
        changed.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(theirs.ca))
        changed.setenv("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Bearer%20a%2Cb")
        async with tls_collector(Asking(store), theirs) as port:
            spec = span_receiver_spec(tmp_path, stored, f"https://127.0.0.1:{port}")
            child = await asyncio.create_subprocess_exec(
                *spec.argv, env={**os.environ, **spec.environment}
            )
            try:
                await until_it_listens(spec.endpoint)
                changed.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{spec.endpoint}")
                changed.delenv("OTEL_EXPORTER_OTLP_HEADERS")
                await export_one(store)
            finally:
                child.terminate()
                assert await child.wait() == 0
    with SpanStore(stored) as kept:
        assert kept.of_request("r1")


def span_receiver_spec(folder: Path, stored: Path, forward_to: str) -> ServiceSpec:
    """As `baton up` would start it."""
    options = plan.Options([LocalModel("m", folder)], port=0, spans_forward_to=forward_to)
    (spec,) = plan.make(Home(folder), options).of_service("spans")
    return replace(spec, environment={**spec.environment, "BATON_SPANS_STORE": str(stored)})


async def until_it_listens(endpoint: str) -> None:
    host, _, port = endpoint.rpartition(":")
    async with asyncio.timeout(60):
        while True:
            try:
                _, writer = await asyncio.open_connection(host, int(port))
            except ConnectionRefusedError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return

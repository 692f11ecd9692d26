"""A receiver of spans that is reached over TLS, as collectors outside a deployment are."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc

from baton.testing.certificates import MemberFiles


@asynccontextmanager
async def tls_collector(servicer: Any, files: MemberFiles) -> AsyncIterator[int]:
    """Serve on 127.0.0.1; yields the port."""
    server = grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(servicer, server)
    credentials = grpc.ssl_server_credentials([(files.key.read_bytes(), files.cert.read_bytes())])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)

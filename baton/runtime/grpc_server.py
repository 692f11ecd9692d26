"""A gRPC server with our limits, health service and failure translation; no reflection.

With certificates (peer_tls.py) every caller must show one that names a peer, and a service that may
make the call (callers.py). Without, the server listens on this machine only, unless the setting
`plaintext` says otherwise.
"""

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from baton.runtime import peer_tls
from baton.runtime.callers import PeersOnly
from baton.runtime.grpc_channel import LINK_OPTIONS, MESSAGE_OPTIONS
from baton.runtime.peer_tls import PeerTls
from baton.wire import failures, metadata
from baton.wire.protocol import agree

# No ping strikes: our own peers ping every 200 ms (see grpc_channel.LINK_OPTIONS).
_SERVER_OPTIONS = [
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 50),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.max_metadata_size", 16 * 1024),
]
# From NOT_SERVING to the stop: time for peers that watch the health, and for calls on their way.
_NOTICE_S = 0.1

F = TypeVar("F", bound=Callable[..., Any])


class GrpcServer:
    """A running server; `port` is the bound port."""

    def __init__(self, server: grpc.aio.Server, health: HealthServicer, port: int) -> None:
        self._server = server
        self._health = health
        self.port = port

    async def set_serving(self, serving: bool) -> None:
        """Set what the health service answers."""
        states = health_pb2.HealthCheckResponse
        await self._health.set("", states.SERVING if serving else states.NOT_SERVING)

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, and let running ones end within `grace_s`.

        Peers that watch the health go elsewhere first: at the stop, gRPC cancels calls that have
        arrived and not begun, or have only just begun.
        """
        await self._health.enter_graceful_shutdown()
        if grace_s > 0:
            await asyncio.sleep(min(grace_s, _NOTICE_S))
        await self._server.stop(grace_s)


async def start_server(
    listen: str,
    register: Callable[[grpc.aio.Server], None],
    *,
    link: bool = False,
    tls: PeerTls | None = None,
) -> GrpcServer:
    """Serve on `listen` ("host:port", port 0 = any free one).

    `link`: for shared streams. `tls`: the identity to serve with instead of the process's own.
    Raises OSError when the address cannot be bound, SettingsError when it needs TLS.
    """
    tls = tls or peer_tls.of_process()
    options = MESSAGE_OPTIONS + _SERVER_OPTIONS + (LINK_OPTIONS if link else [])
    server = grpc.aio.server(
        interceptors=[PeersOnly(tls)] if tls else [],
        options=[*options, ("grpc.so_reuseport", 0)],
    )
    health = HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    register(server)
    try:
        port = _bind(server, listen, tls)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {listen}: {error}") from error
    await server.start()
    running = GrpcServer(server, health, port)
    await running.set_serving(True)
    return running


def _bind(server: grpc.aio.Server, listen: str, tls: PeerTls | None) -> int:
    if tls is None:
        peer_tls.check_listen(listen)
        return server.add_insecure_port(listen)
    return server.add_secure_port(listen, tls.server_credentials())


def translate_failures(method: F) -> F:
    """Decorate a unary or response-streaming servicer method: its BatonError becomes a status."""

    @functools.wraps(method)
    async def unary(self: Any, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            _agree(context)
            return await method(self, request, context)
        except failures.BatonError as error:
            await _abort(context, error)

    @functools.wraps(method)
    async def streaming(
        self: Any, request: Any, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[Any]:
        try:
            _agree(context)
            async for response in method(self, request, context):
                yield response
        except failures.BatonError as error:
            await _abort(context, error)

    return streaming if inspect.isasyncgenfunction(method) else unary  # type: ignore[return-value]


def _agree(context: grpc.aio.ServicerContext[Any, Any]) -> None:
    """Check the caller's version. Raises Incompatible when it is too old to be understood.

    A stream whose first message names the version has none here.
    """
    version = dict(context.invocation_metadata() or ()).get(metadata.PROTOCOL)
    if version is None:
        return
    if not (isinstance(version, str) and version.isascii() and version.isdigit()):
        raise failures.Incompatible("the caller names no version of the protocol")
    agree(int(version[:9]), peer=f"the caller at {context.peer()}", own="this service")


async def _abort(
    context: grpc.aio.ServicerContext[Any, Any], error: failures.BatonError
) -> Awaitable[None]:
    wire = failures.to_wire(error).SerializeToString()
    await context.abort(
        grpc.StatusCode[error.row.grpc_code], error.message, ((metadata.FAILURE, wire),)
    )
    raise AssertionError("abort always raises")

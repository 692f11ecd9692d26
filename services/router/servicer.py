"""The router's gRPC services, for gateways and for other routers: pass calls to RouterCore.

Decide nothing.
"""

from collections.abc import AsyncIterator
from typing import Any

import grpc

from baton.runtime.grpc_server import incoming, translate_failures
from baton.runtime.telemetry import start_span
from baton.wire.protocol import agree
from baton.wire.v1 import peers_pb2, peers_pb2_grpc, router_pb2, router_pb2_grpc
from services.router.router_core import RouterCore

# A refusal must reach the caller before the caller's own deadline.
REPLY_MARGIN_S = 0.05


class RouterServicer(router_pb2_grpc.RouterServicer):
    """Bounds the wait in the queue by the call's deadline; a cancelled call leaves the queue."""

    def __init__(self, core: RouterCore) -> None:
        self._core = core

    @translate_failures
    async def Pick(
        self,
        request: router_pb2.PickRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> router_pb2.PickResponse:
        caller = incoming(context)
        with start_span(
            "router.pick", traceparent=caller.traceparent, request_id=request.request_id
        ) as span:
            response = await self._core.pick(request, _time_to_wait(context.time_remaining()))
            span.set("baton.decode_worker", response.decode.worker_id)
            span.set("baton.prefill_worker", response.prefill.worker_id)
            span.set("baton.predicted_cached_tokens", response.predicted_cached_tokens)
            return response

    @translate_failures
    async def WatchAdmission(
        self,
        request: router_pb2.WatchAdmissionRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[router_pb2.WatchAdmissionResponse]:
        async for response in self._core.watch_admission(takes_deltas=request.takes_deltas):
            yield response


class RouterPeersServicer(peers_pb2_grpc.RouterPeersServicer):
    """Tells other routers what this one gives away."""

    def __init__(self, core: RouterCore) -> None:
        self._core = core

    @translate_failures
    async def Follow(
        self,
        request: peers_pb2.FollowRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[peers_pb2.PeerNews]:
        agree(request.protocol, peer=request.router_id or "a router", own="the router")
        async for news in self._core.follow_news():
            yield news


def _time_to_wait(remaining_s: float | None) -> float | None:
    return None if remaining_s is None else max(0.0, remaining_s - REPLY_MARGIN_S)

"""The router's gRPC services, for gateways and for other routers: pass calls to RouterCore.

Decide nothing.
"""

from collections.abc import AsyncIterator
from typing import Any

import grpc

from baton.runtime.calls.call_server import CallServer, IncomingCall
from baton.runtime.cutoff import Cutoff
from baton.runtime.grpc_server import translate_failures
from baton.runtime.shared_stream import ServerFrameStream
from baton.wire.call_methods import CANCEL, PICK
from baton.wire.protocol import agree
from baton.wire.v1 import peers_pb2, peers_pb2_grpc, router_pb2, router_pb2_grpc
from services.router.router_core import RouterCore

# A refusal must reach the caller before the caller's own deadline.
REPLY_MARGIN_S = 0.05


class RouterServicer(router_pb2_grpc.RouterServicer):
    """Bounds the wait in the queue by the call's deadline; a cancelled call leaves the queue.

    `leaving` ends the streams of calls, which would last as long as their gateways.
    """

    def __init__(self, core: RouterCore, leaving: Cutoff) -> None:
        self._core = core
        self._calls = CallServer({PICK: self._pick, CANCEL: self._cancel}, leaving)

    @translate_failures
    async def Calls(
        self, request_iterator: Any, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        await self._calls.serve(ServerFrameStream(context))

    async def _pick(
        self, request: router_pb2.PickRequest, call: IncomingCall
    ) -> router_pb2.PickResponse:
        with call.span("router.pick") as span:
            response = await self._core.pick(request, max(0.0, call.timeout_s - REPLY_MARGIN_S))
            span.set("baton.worker_id", response.decode.worker_id)
            if response.HasField("prefill"):
                span.set("baton.prefill_worker_id", response.prefill.worker_id)
            span.set("baton.predicted_cached_tokens", response.predicted_cached_tokens)
            return response

    async def _cancel(
        self, request: router_pb2.CancelRequest, _: IncomingCall
    ) -> router_pb2.CancelResponse:
        self._core.cancel(request)
        return router_pb2.CancelResponse()

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

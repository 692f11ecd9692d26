"""The gRPC service of quota: passes calls to the Ledger, with their spans. Decides nothing."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc

from baton.runtime.calls.call_server import CallServer, Handler, IncomingCall
from baton.runtime.cutoff import CutOff, Cutoff
from baton.runtime.grpc_server import translate_failures
from baton.runtime.shared_stream import ServerFrameStream
from baton.wire.call_methods import AUTHENTICATE, RESERVE, SETTLE, CallMethod
from baton.wire.v1 import quota_pb2, quota_pb2_grpc
from services.quota.ledger import Ledger
from services.quota.recent_settles import RecentSettles

Context = grpc.aio.ServicerContext[Any, Any]


class QuotaServicer(quota_pb2_grpc.QuotaServicer):
    """Answers the calls of the Quota service from a Ledger.

    `leaving` ends the renewal streams, which would last as long as their gateways; the gateways
    open them again at another replica. They make their next calls there, too.
    """

    def __init__(self, ledger: Ledger, settles: RecentSettles, leaving: Cutoff) -> None:
        self._ledger = ledger
        self._settles = settles
        self._leaving = leaving
        handlers: dict[CallMethod[Any, Any], Handler] = {
            AUTHENTICATE: self._authenticate,
            RESERVE: self._reserve,
            SETTLE: self._settle,
        }
        self._calls = CallServer(handlers, leaving)

    @translate_failures
    async def Calls(self, request_iterator: Any, context: Context) -> None:
        await self._calls.serve(ServerFrameStream(context))

    @translate_failures
    async def Renew(
        self, request_iterator: AsyncIterator[quota_pb2.RenewRequest], context: Context
    ) -> AsyncIterator[quota_pb2.RenewResponse]:
        requests = aiter(request_iterator)
        with contextlib.suppress(CutOff, StopAsyncIteration):
            while True:
                async with self._leaving.guard():
                    request = await anext(requests)
                yield await self._ledger.renew(request)

    async def _authenticate(
        self, request: quota_pb2.AuthenticateRequest, call: IncomingCall
    ) -> quota_pb2.AuthenticateResponse:
        with call.span("quota.authenticate"):
            return await self._ledger.authenticate(request)

    async def _reserve(
        self, request: quota_pb2.ReserveRequest, call: IncomingCall
    ) -> quota_pb2.ReserveResponse:
        with call.span("quota.reserve") as span:
            span.set("baton.tenant", request.tenant)
            return await self._ledger.reserve(request)

    async def _settle(
        self, request: quota_pb2.SettleRequest, call: IncomingCall
    ) -> quota_pb2.SettleResponse:
        with call.span("quota.settle") as span:
            span.set("baton.tenant", request.usage.tenant)
            return await self._settles.settle(request)

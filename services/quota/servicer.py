"""The gRPC service of quota: passes calls to the Ledger, with their spans. Decides nothing."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc

from baton.runtime import telemetry
from baton.runtime.cutoff import CutOff, Cutoff
from baton.runtime.grpc_server import incoming, translate_failures
from baton.wire.v1 import quota_pb2, quota_pb2_grpc
from services.quota.ledger import Ledger
from services.quota.recent_settles import RecentSettles

Context = grpc.aio.ServicerContext[Any, Any]


class QuotaServicer(quota_pb2_grpc.QuotaServicer):
    """Answers the calls of the Quota service from a Ledger.

    `leaving` ends the renewal streams, which would last as long as their gateways; the gateways
    open them again at another replica.
    """

    def __init__(self, ledger: Ledger, settles: RecentSettles, leaving: Cutoff) -> None:
        self._ledger = ledger
        self._settles = settles
        self._leaving = leaving

    @translate_failures
    async def Authenticate(
        self, request: quota_pb2.AuthenticateRequest, context: Context
    ) -> quota_pb2.AuthenticateResponse:
        with _span("quota.authenticate", context):
            return await self._ledger.authenticate(request)

    @translate_failures
    async def Reserve(
        self, request: quota_pb2.ReserveRequest, context: Context
    ) -> quota_pb2.ReserveResponse:
        with _span("quota.reserve", context, request.request_id) as span:
            span.set("baton.tenant", request.tenant)
            return await self._ledger.reserve(request)

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

    @translate_failures
    async def Settle(
        self, request: quota_pb2.SettleRequest, context: Context
    ) -> quota_pb2.SettleResponse:
        with _span("quota.settle", context, request.usage.request_id) as span:
            span.set("baton.tenant", request.usage.tenant)
            return await self._settles.settle(request)


def _span(name: str, context: Context, request_id: str = "") -> telemetry.Span:
    call = incoming(context)
    return telemetry.start_span(
        name, traceparent=call.traceparent, request_id=call.request_id or request_id
    )

"""The check of callers' certificates on a gRPC server: peers, of services that may make the call.

Every certificate carries the DNS name of all peers ("baton"). One that also names its service
("gateway.baton") is held to that: with a worker's certificate no bill is settled. A certificate
without such a name may make every call, for deployments that have one certificate for all; where
each service has its own (BATON_TLS_PER_SERVICE), it may make none of these.
"""

import inspect
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

import grpc

from baton.runtime import logs
from baton.runtime.peer_tls import PeerTls

# gRPC service, or one method of it -> the services whose calls it takes; a method's own row stands
# before its service's. Absent: any peer's, as for health checks.
CALLERS: dict[str, Collection[str]] = {
    "baton.wire.v1.Quota": ("gateway",),
    "baton.wire.v1.Tokenizer": ("gateway",),
    "baton.wire.v1.Router": ("gateway",),
    "baton.wire.v1.Router/WatchAdmission": ("gateway", "tokenizer"),
    "baton.wire.v1.RouterPeers": ("router",),
    "baton.wire.v1.DecodeWorker": ("gateway",),
    "baton.wire.v1.WorkerReports": ("router",),
    "baton.wire.v1.WorkerFiles": ("tokenizer",),
    "baton.wire.v1.PrefillWorker": ("worker",),
    "envoy.service.discovery.v3.AggregatedDiscoveryService": ("envoy",),
}
_KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")

_log = logs.get("callers")


class PeersOnly(grpc.aio.ServerInterceptor):
    """Refuses callers whose certificate names no peer, or a service that may not make the call."""

    def __init__(self, tls: PeerTls) -> None:
        self._tls = tls

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        kind = next(kind for kind in _KINDS if getattr(handler, kind) is not None)
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        method = self._guarded(getattr(handler, kind), handler_call_details.method.strip("/"))
        return make(method, handler.request_deserializer, handler.response_serializer)

    def _guarded(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        """The method behind the check: a coroutine or an async generator, as it was."""

        async def awaited(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            await self._check(name, context)
            return await method(request, context)

        async def iterated(
            request: Any, context: grpc.aio.ServicerContext[Any, Any]
        ) -> AsyncIterator[Any]:
            await self._check(name, context)
            async for response in method(request, context):
                yield response

        return iterated if inspect.isasyncgenfunction(method) else awaited

    async def _check(self, method: str, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        names = [name.decode() for name in context.auth_context().get("peer_dns", ())]
        service = method.partition("/")[0]
        may_call = CALLERS.get(method, CALLERS.get(service))
        reason = refusal(names, self._tls, service, may_call)
        if reason:
            _log.warning("caller_refused", peer=context.peer(), reason=reason[:300])
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason[:500])


def refusal(
    names: Collection[str], tls: PeerTls, service: str, may_call: Collection[str] | None
) -> str:
    """The reason why a certificate with these DNS names may not call `service`; empty = it may.

    `may_call`: the services that may; None = every peer.
    """
    shown = ", ".join(names) or "nobody"
    if tls.peer_name not in names:
        return f"the caller's certificate names {shown}, not {tls.peer_name}"
    suffix = f".{tls.peer_name}"
    callers = {name.removesuffix(suffix) for name in names if name.endswith(suffix)}
    if may_call is None or not (callers or tls.per_service):
        return ""
    if callers.isdisjoint(may_call):
        return f"the caller's certificate names {shown}, which may not call {service}"
    return ""

"""The ADS stream of one Envoy, in the state-of-the-world variant of xDS.

https://www.envoyproxy.io/docs/envoy/latest/api-docs/xds_protocol. `Session` is the protocol without
a network; `AdsServicer` serves it over gRPC. betterproto2 makes no grpc.aio servicers, but its
messages fit generic handlers.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc
from envoy_data_plane.envoy.service.discovery.v3 import DiscoveryRequest, DiscoveryResponse

from baton.runtime import logs
from services.edge import instruments
from services.edge.configuration import ORDER, Configuration, version_of
from services.edge.discovery import Location

SERVICE = "envoy.service.discovery.v3.AggregatedDiscoveryService"
_MAX_REASON_CHARS = 500

_log = logs.get("ads")


class Session:
    """The state of one Envoy on one stream: its subscriptions, and the versions it was sent."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._own = Location()
        self.node_id = ""
        # By type: the names that the Envoy asks for, the version last sent and its nonce.
        self._names: dict[str, frozenset[str]] = {}
        self._sent: dict[str, str] = {}
        self._nonces: dict[str, str] = {}
        self._num_sent = 0

    def take(self, request: DiscoveryRequest) -> None:
        """Take a subscription, an acknowledgement or a refusal."""
        if request.node is not None:
            self._introduce(request)
        kind = request.type_url
        if request.response_nonce != self._nonces.get(kind, ""):
            # It is about an answer that has been replaced; one about the last answer follows.
            return
        if request.error_detail is not None:
            self._refused(request)
        names = frozenset(request.resource_names)
        if names != self._names.get(kind):
            self._names[kind] = names
            self._sent.pop(kind, None)

    def due(self) -> Iterator[DiscoveryResponse]:
        """The answers that are due now. A refused version is not sent again."""
        if not self._configuration.is_known:
            return
        for kind in ORDER:
            if kind not in self._names:
                continue
            resources = self._configuration.resources(kind, self._own)
            version = version_of(resources)
            if self._sent.get(kind) == version:
                continue
            self._num_sent += 1
            self._sent[kind] = version
            self._nonces[kind] = str(self._num_sent)
            yield DiscoveryResponse(
                version_info=version,
                resources=resources,
                type_url=kind,
                nonce=self._nonces[kind],
            )

    def _introduce(self, request: DiscoveryRequest) -> None:
        node = request.node
        assert node is not None
        self.node_id = node.id
        if node.locality is not None:
            self._own = Location(node.locality.region, node.locality.zone)

    def _refused(self, request: DiscoveryRequest) -> None:
        assert request.error_detail is not None
        kind = request.type_url.rpartition(".")[2]
        instruments.EDGE_REFUSED_CONFIGS.labels(kind).inc()
        reason = request.error_detail.message[:_MAX_REASON_CHARS]
        _log.error("config_refused", node=self.node_id, kind=kind, reason=reason)


class AdsServicer:
    """The servicer of all Envoys, over one configuration."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration

    def register(self, server: grpc.aio.Server) -> None:
        method = grpc.stream_stream_rpc_method_handler(
            self._stream, DiscoveryRequest.FromString, DiscoveryResponse.SerializeToString
        )
        methods = {"StreamAggregatedResources": method}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))

    async def _stream(self, _: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        session, wake = Session(self._configuration), asyncio.Event()
        instruments.EDGE_ENVOYS.inc()
        try:
            with self._configuration.watched(wake):
                async with asyncio.TaskGroup() as tasks:
                    reading = tasks.create_task(_read(session, wake, context))
                    while not reading.done():
                        wake.clear()
                        for response in session.due():
                            await context.write(response)
                        await wake.wait()
        finally:
            instruments.EDGE_ENVOYS.dec()
            _log.info("envoy_left", node=session.node_id)


async def _read(
    session: Session, wake: asyncio.Event, context: grpc.aio.ServicerContext[Any, Any]
) -> None:
    try:
        while (request := await context.read()) is not grpc.aio.EOF:
            if not session.node_id and request.node is not None:
                _log.info("envoy_came", node=request.node.id)
            session.take(request)
            wake.set()
    finally:
        wake.set()

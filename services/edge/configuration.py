"""The configuration of all Envoys, and its versions.

It has no state of its own: a new control plane builds the same configuration as the last one, so
that an Envoy that dials it changes nothing.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Protocol

import betterproto2
from envoy_data_plane.google.protobuf import Any

from services.edge import instruments
from services.edge.clusters import gateway_cluster
from services.edge.discovery import GatewayReplica, GatewayState, Location
from services.edge.endpoints import load_assignment
from services.edge.gateway_tls import GatewayTls
from services.edge.listener import ClientSide, certificate, listener
from services.edge.messages import packed
from services.edge.span_cluster import span_cluster

_TYPE = "type.googleapis.com/envoy."
CLUSTERS = _TYPE + "config.cluster.v3.Cluster"
ENDPOINTS = _TYPE + "config.endpoint.v3.ClusterLoadAssignment"
LISTENERS = _TYPE + "config.listener.v3.Listener"
SECRETS = _TYPE + "extensions.transport_sockets.tls.v3.Secret"
# The order in which they must arrive: a resource before those that refer to it.
ORDER = (CLUSTERS, ENDPOINTS, LISTENERS, SECRETS)
_VERSION_CHARS = 16


class Wakeable(Protocol):
    """The part of an asyncio.Event that is needed here."""

    def set(self) -> None: ...


class Configuration:
    """The configuration of every Envoy. A `Discovery` calls `found`."""

    def __init__(self, side: ClientSide, gateway_tls: GatewayTls | None = None) -> None:
        clusters = [gateway_cluster(gateway_tls)]
        if side.tracing is not None:
            clusters.append(span_cluster(side.tracing))
        secrets = gateway_tls.secrets() if gateway_tls else []
        if own := certificate(side.settings):
            secrets.append(own)
        self._fixed = {
            CLUSTERS: _packed(clusters),
            LISTENERS: _packed([listener(side)]),
            SECRETS: _packed(secrets),
        }
        self._prefer = side.settings.prefer
        self._replicas: frozenset[GatewayReplica] | None = None
        self._watchers: set[Wakeable] = set()

    @property
    def is_known(self) -> bool:
        """True once the gateways are known.

        Nothing is sent before: an Envoy that has a configuration must keep it.
        """
        return self._replicas is not None

    def found(self, replicas: Sequence[GatewayReplica]) -> None:
        """Take the list of all gateways."""
        fresh = frozenset(replicas)
        if fresh == self._replicas:
            return
        self._replicas = fresh
        for state in GatewayState:
            number = sum(replica.state is state for replica in fresh)
            instruments.EDGE_GATEWAYS.labels(state).set(number)
        for watcher in self._watchers:
            watcher.set()

    @contextmanager
    def watched(self, watcher: Wakeable) -> Iterator[None]:
        """Set `watcher` whenever the configuration has changed."""
        self._watchers.add(watcher)
        try:
            yield
        finally:
            self._watchers.discard(watcher)

    def resources(self, type_url: str, own: Location) -> list[Any]:
        """The resources of one type, for an Envoy at `own`. Only once `is_known`."""
        if type_url != ENDPOINTS:
            return self._fixed.get(type_url, [])
        assert self._replicas is not None
        return _packed([load_assignment(self._replicas, own, self._prefer)])


def version_of(resources: list[Any]) -> str:
    """A digest of the content, the same in every process."""
    digest = sha256()
    for resource in resources:
        digest.update(bytes(resource))
    return digest.hexdigest()[:_VERSION_CHARS]


def _packed(messages: Sequence[betterproto2.Message]) -> list[Any]:
    return [packed(message) for message in messages]

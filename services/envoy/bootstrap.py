"""The bootstrap of an Envoy: its identity, its control plane, and its limits.

Everything about clients and gateways comes from the control plane (services/edge), so that the
bootstrap changes rarely and contains no secret. Plain JSON as in Envoy's documentation: Envoy's
image needs no generated classes, and Envoy refuses fields that it does not know.
"""

import socket
from pathlib import Path
from typing import Any

from baton.runtime import peer_tls
from services.envoy.messages import Json, address, endpoints, typed
from services.envoy.metrics_listener import metrics_cluster, metrics_listener
from services.envoy.peer_transport import peer_transport
from services.envoy.settings import Settings

CONTROL_PLANE = "control-plane"
_HEAP = "envoy.resource_monitors.fixed_heap"
_CONNECTIONS = "envoy.resource_monitors.global_downstream_max_connections"
# The share of the heap at which Envoy takes each action.
_HEAP_ACTIONS = {
    "envoy.overload_actions.shrink_heap": 0.85,
    "envoy.overload_actions.disable_http_keepalive": 0.90,
    "envoy.overload_actions.stop_accepting_requests": 0.95,
    "envoy.overload_actions.stop_accepting_connections": 0.98,
}
# A waterfall is opened right after its request; Envoy's default is 5 s.
_SPAN_FLUSH_MS = 500
# The stream to the control plane, without a timeout: an Envoy without its configuration must not
# say that it is ready.
_FROM_ADS: Json = {"ads": {}, "initial_fetch_timeout": "0s", "resource_api_version": "V3"}


def bootstrap(
    settings: Settings, peer: peer_tls.Settings, secrets_folder: Path | None = None
) -> Json:
    """Build the bootstrap. `peer` and `secrets_folder`: see peer_transport.py."""
    clusters = [_control_plane_cluster(settings, peer, secrets_folder)]
    listeners = []
    if settings.metrics_listen:
        clusters.append(metrics_cluster(settings.admin_listen))
        listeners.append(metrics_listener(settings.metrics_listen))
    runtime = {"tracing.opentelemetry.flush_interval_ms": _SPAN_FLUSH_MS}
    return {
        "node": {
            "id": settings.node_id or socket.gethostname(),
            "cluster": "edge",
            "locality": {"region": settings.region, "zone": settings.zone},
        },
        "admin": {"address": address(settings.admin_listen)},
        "static_resources": {"clusters": clusters, "listeners": listeners},
        "dynamic_resources": {
            "ads_config": _control_plane(), "cds_config": _FROM_ADS, "lds_config": _FROM_ADS
        },
        "layered_runtime": {"layers": [{"name": "static", "static_layer": runtime}]},
        "overload_manager": _overload_manager(settings),
    }  # fmt: skip


def _control_plane() -> Json:
    """The ADS stream, dialled again within two seconds, however long it was away."""
    back_off = {"base_interval": "0.2s", "max_interval": "2s"}
    service = {"cluster_name": CONTROL_PLANE, "retry_policy": {"retry_back_off": back_off}}
    return {
        "api_type": "GRPC",
        "transport_api_version": "V3",
        "set_node_on_first_message_only": True,
        "grpc_services": [{"envoy_grpc": service}],
    }


def _control_plane_cluster(
    settings: Settings, peer: peer_tls.Settings, secrets_folder: Path | None
) -> Json:
    keepalive = {"interval": "10s", "timeout": "5s"}
    protocol = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    http2 = {"http2_protocol_options": {"connection_keepalive": keepalive}}
    cluster: dict[str, Any] = {
        "name": CONTROL_PLANE,
        "type": "STRICT_DNS",
        "connect_timeout": "2s",
        "load_assignment": endpoints(CONTROL_PLANE, settings.control_plane),
        "typed_extension_protocol_options": {protocol: typed(protocol, explicit_http_config=http2)},
    }
    if transport := peer_transport(peer, secrets_folder):
        cluster["transport_socket"] = transport
    return cluster


def _overload_manager(settings: Settings) -> Json:
    monitors = "envoy.extensions.resource_monitors."
    heap = typed(
        monitors + "fixed_heap.v3.FixedHeapConfig", max_heap_size_bytes=settings.max_heap_bytes
    )
    connections = typed(
        monitors + "downstream_connections.v3.DownstreamConnectionsConfig",
        max_active_downstream_connections=settings.max_connections,
    )
    return {
        "refresh_interval": "0.25s",
        "resource_monitors": [
            {"name": _HEAP, "typed_config": heap},
            {"name": _CONNECTIONS, "typed_config": connections},
        ],
        "actions": [
            {"name": action, "triggers": [{"name": _HEAP, "threshold": {"value": share}}]}
            for action, share in _HEAP_ACTIONS.items()
        ],
    }

"""What an Envoy is started with: who it is, where its control plane is, and how much it may take.

Everything about clients and gateways comes from the control plane (`listener.py`, `clusters.py`,
`endpoints.py`), so that this file changes rarely and holds no secret.
"""

import socket
from pathlib import Path

from envoy_data_plane.envoy.config.bootstrap.v3 import (
    Admin,
    Bootstrap,
    BootstrapDynamicResources,
    BootstrapStaticResources,
    LayeredRuntime,
    RuntimeLayer,
)
from envoy_data_plane.envoy.config.core.v3 import (
    ApiConfigSource,
    ApiConfigSourceApiType,
    ApiVersion,
    BackoffStrategy,
    GrpcService,
    GrpcServiceEnvoyGrpc,
    Locality,
    Node,
    RetryPolicy,
)
from envoy_data_plane.envoy.config.overload.v3 import (
    OverloadAction,
    OverloadManager,
    ResourceMonitor,
    ThresholdTrigger,
    Trigger,
)
from envoy_data_plane.envoy.extensions.resource_monitors.downstream_connections.v3 import (
    DownstreamConnectionsConfig,
)
from envoy_data_plane.envoy.extensions.resource_monitors.fixed_heap.v3 import FixedHeapConfig
from envoy_data_plane.google.protobuf import Struct

from baton.runtime import peer_tls
from services.edge.clusters import grpc_cluster
from services.edge.messages import address, from_ads, packed, seconds
from services.edge.metrics_listener import metrics_cluster, metrics_listener
from services.edge.peer_transport import peer_transport
from services.edge.settings import EnvoySettings

CONTROL_PLANE = "control-plane"
_HEAP = "envoy.resource_monitors.fixed_heap"
_CONNECTIONS = "envoy.resource_monitors.global_downstream_max_connections"
# At which part of the heap Envoy does what.
_HEAP_ACTIONS = {
    "envoy.overload_actions.shrink_heap": 0.85,
    "envoy.overload_actions.disable_http_keepalive": 0.90,
    "envoy.overload_actions.stop_accepting_requests": 0.95,
    "envoy.overload_actions.stop_accepting_connections": 0.98,
}
# A waterfall is looked at right after its request: Envoy's default is 5 s.
_SPAN_FLUSH_MS = 500


def bootstrap(
    settings: EnvoySettings, peer: peer_tls.Settings, secrets_folder: Path | None = None
) -> Bootstrap:
    """`peer` and `secrets_folder`: see peer_transport.py."""
    transport = peer_transport(peer, secrets_folder)
    clusters = [grpc_cluster(CONTROL_PLANE, settings.control_plane, transport)]
    listeners = []
    if settings.metrics_listen:
        clusters.append(metrics_cluster(settings.admin_listen))
        listeners.append(metrics_listener(settings.metrics_listen))
    runtime = {"tracing.opentelemetry.flush_interval_ms": _SPAN_FLUSH_MS}
    return Bootstrap(
        node=Node(
            id=settings.node_id or socket.gethostname(),
            cluster="edge",
            locality=Locality(region=settings.region, zone=settings.zone),
        ),
        admin=Admin(address=address(settings.admin_listen)),
        static_resources=BootstrapStaticResources(clusters=clusters, listeners=listeners),
        dynamic_resources=BootstrapDynamicResources(
            ads_config=_control_plane(), cds_config=from_ads(), lds_config=from_ads()
        ),
        layered_runtime=LayeredRuntime(
            layers=[RuntimeLayer(name="static", static_layer=Struct.from_dict(runtime))]
        ),
        overload_manager=_overload_manager(settings),
    )


def _control_plane() -> ApiConfigSource:
    """Dialled again within two seconds, however long it was away."""
    back_off = BackoffStrategy(base_interval=seconds(0.2), max_interval=seconds(2))
    service = GrpcServiceEnvoyGrpc(
        cluster_name=CONTROL_PLANE, retry_policy=RetryPolicy(retry_back_off=back_off)
    )
    return ApiConfigSource(
        api_type=ApiConfigSourceApiType.GRPC,
        transport_api_version=ApiVersion.V3,
        set_node_on_first_message_only=True,
        grpc_services=[GrpcService(envoy_grpc=service)],
    )


def _overload_manager(settings: EnvoySettings) -> OverloadManager:
    heap = FixedHeapConfig(max_heap_size_bytes=settings.max_heap_bytes)
    connections = DownstreamConnectionsConfig(
        max_active_downstream_connections=settings.max_connections
    )
    return OverloadManager(
        refresh_interval=seconds(0.25),
        resource_monitors=[
            ResourceMonitor(name=_HEAP, typed_config=packed(heap)),
            ResourceMonitor(name=_CONNECTIONS, typed_config=packed(connections)),
        ],
        actions=[
            OverloadAction(
                name=action,
                triggers=[Trigger(name=_HEAP, threshold=ThresholdTrigger(value=share))],
            )
            for action, share in _HEAP_ACTIONS.items()
        ],
    )

"""A port that shows Envoy's metrics and readiness to scrapers, and nothing else of the admin port,
which can also stop Envoy and show its configuration."""

from envoy_data_plane.envoy.config.cluster.v3 import Cluster, ClusterDiscoveryType
from envoy_data_plane.envoy.config.endpoint.v3 import (
    ClusterLoadAssignment,
    Endpoint,
    LbEndpoint,
    LocalityLbEndpoints,
)
from envoy_data_plane.envoy.config.listener.v3 import FilterChain, Listener
from envoy_data_plane.envoy.config.route.v3 import (
    HeaderMatcher,
    Route,
    RouteAction,
    RouteConfiguration,
    RouteMatch,
    VirtualHost,
)
from envoy_data_plane.envoy.extensions.filters.http.router.v3 import Router
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    HttpConnectionManager,
    HttpFilter,
)
from envoy_data_plane.envoy.type.matcher.v3 import StringMatcher

from services.edge.messages import address, http_filter, packed, seconds

_ADMIN = "admin"
METRICS_PATH = "/stats/prometheus"
_PATHS = (METRICS_PATH, "/ready")


def metrics_cluster(admin_listen: str) -> Cluster:
    endpoint = LbEndpoint(endpoint=Endpoint(address=address(admin_listen)))
    return Cluster(
        name=_ADMIN,
        type=ClusterDiscoveryType.STATIC,
        connect_timeout=seconds(1),
        load_assignment=ClusterLoadAssignment(
            cluster_name=_ADMIN, endpoints=[LocalityLbEndpoints(lb_endpoints=[endpoint])]
        ),
    )


def metrics_listener(listen: str) -> Listener:
    get = HeaderMatcher(name=":method", string_match=StringMatcher(exact="GET"))
    allowed = [
        Route(match=RouteMatch(path=path, headers=[get]), route=RouteAction(cluster=_ADMIN))
        for path in _PATHS
    ]
    manager = HttpConnectionManager(
        stat_prefix="metrics",
        route_config=RouteConfiguration(
            name="metrics",
            virtual_hosts=[VirtualHost(name="all", domains=["*"], routes=allowed)],
        ),
        http_filters=[HttpFilter(name="envoy.filters.http.router", typed_config=packed(Router()))],
    )
    chain = FilterChain(filters=[http_filter(manager)])
    return Listener(
        name="metrics",
        address=address(listen),
        filter_chains=[chain],
        ignore_global_conn_limit=True,
        bypass_overload_manager=True,
    )

"""The port for scrapers: metrics and readiness of Envoy, and nothing else of its admin port, which
can also stop Envoy and show its configuration."""

from services.envoy.messages import Json, address, endpoints, typed

_ADMIN = "admin"
_PATHS = ("/stats/prometheus", "/ready")
_MANAGER = "envoy.filters.network.http_connection_manager"
_ROUTER = "envoy.filters.http.router"


def metrics_cluster(admin_listen: str) -> Json:
    return {
        "name": _ADMIN,
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": endpoints(_ADMIN, admin_listen),
    }


def metrics_listener(listen: str) -> Json:
    get = {"name": ":method", "string_match": {"exact": "GET"}}
    allowed = [
        {"match": {"path": path, "headers": [get]}, "route": {"cluster": _ADMIN}} for path in _PATHS
    ]
    host = {"name": "all", "domains": ["*"], "routes": allowed}
    router = typed("envoy.extensions.filters.http.router.v3.Router")
    manager = typed(
        "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="metrics",
        route_config={"name": "metrics", "virtual_hosts": [host]},
        http_filters=[{"name": _ROUTER, "typed_config": router}],
    )
    return {
        "name": "metrics",
        "address": address(listen),
        "filter_chains": [{"filters": [{"name": _MANAGER, "typed_config": manager}]}],
        # It answers even while Envoy accepts no more clients.
        "ignore_global_conn_limit": True,
        "bypass_overload_manager": True,
    }

"""Metrics of the edge, Envoy's control plane."""

from prometheus_client import Counter, Gauge

from baton.runtime.instruments import Series

EDGE_GATEWAYS = Gauge(
    "baton_edge_gateways",
    "Gateways in the configuration of Envoys, by state: ready, unready, draining",
    ("state",),
)
EDGE_ENVOYS = Gauge("baton_edge_envoys", "Envoys that are connected to the control plane")
EDGE_REFUSED_CONFIGS = Counter(
    "baton_edge_refused_configs", "Configurations that an Envoy has refused", ("kind",)
)

KNOWN_SERIES: Series = {
    EDGE_REFUSED_CONFIGS: [("Cluster",), ("ClusterLoadAssignment",), ("Listener",), ("Secret",)]
}

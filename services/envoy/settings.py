"""Settings of one Envoy (BATON_ENVOY_*)."""

from dataclasses import dataclass

from baton.runtime.discovery.addresses import host_and_port

PREFIX = "BATON_ENVOY_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """An Envoy's identity, location and limits; each field is one variable."""

    # The control plane, host:port; a name may stand for several addresses.
    control_plane: str = "127.0.0.1:18000"
    # Its name at the control plane; empty = the host's name.
    node_id: str = ""
    # The region where it runs; it decides which gateways are near.
    region: str = ""
    # The zone where it runs, in the same way.
    zone: str = ""
    # Address of Envoy's own admin port. It can stop Envoy and show its configuration: for this
    # machine or pod only.
    admin_listen: str = "127.0.0.1:9901"
    # Address that serves /stats/prometheus and /ready of the admin port, and nothing else. Empty =
    # no such port.
    metrics_listen: str = ""
    # Threads that serve connections; 0 = one for each core.
    concurrency: int = 0
    # Envoy's memory. Near it Envoy frees what it can, then refuses new requests.
    max_heap_bytes: int = 1024 * 1024 * 1024
    # Connections of clients at once.
    max_connections: int = 20_000
    # Seconds for which a stopping Envoy is unready and still serves new requests.
    unready_s: float = 5.0
    # Seconds for which open requests may go on after that.
    drain_s: float = 120.0

    def __post_init__(self) -> None:
        for name in ("max_heap_bytes", "max_connections"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        for name in ("concurrency", "unready_s", "drain_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more")
        for name in ("control_plane", "admin_listen"):
            host_and_port(getattr(self, name))

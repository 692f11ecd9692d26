"""Settings of the control plane (BATON_EDGE_*) and of an Envoy beside it (BATON_ENVOY_*)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from services.edge.addresses import host_and_port

PREFIX = "BATON_EDGE_"
ENVOY_PREFIX = "BATON_ENVOY_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The control plane: which gateways there are, and how every Envoy shall serve clients."""

    # Where Envoys dial this control plane.
    listen: str = "127.0.0.1:18000"
    admin_listen: str = "127.0.0.1:0"
    # host:port or host:port@region/zone, where every address of a name counts; or
    # kubernetes:[NAMESPACE/]SERVICE[:PORT] or the same with @region, whose endpoints tell zones.
    gateways: tuple[str, ...]
    # How often the names are resolved and the gateways asked.
    poll_s: float = 1.0
    # Where Envoys listen for clients.
    http_listen: str = "0.0.0.0:8080"
    # PEM files as Envoy sees them, read again when their folder changes. Without: plain HTTP.
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    # Whose gateways come first, as seen from an Envoy; others when too few of them are healthy.
    prefer: Literal["region", "zone"] = "region"
    # Proxies in front of Envoy whose x-forwarded-for is true.
    trusted_proxies: int = 0
    # The gateway has the same limit; here a larger content-length is refused at once.
    max_body_bytes: int = 8 * 1024 * 1024

    def __post_init__(self) -> None:
        if not self.gateways:
            raise ValueError("gateways must name at least one")
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_cert_file and tls_key_file go together")
        for name in ("poll_s", "max_body_bytes"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0")
        if self.trusted_proxies < 0:
            raise ValueError("trusted_proxies must be 0 or more")
        host_and_port(self.http_listen)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvoySettings:
    """One Envoy: who and where it is, and how much it may take."""

    # host:port of the control plane; a name may stand for several addresses.
    control_plane: str = "127.0.0.1:18000"
    # Empty = the host's name.
    node_id: str = ""
    region: str = ""
    zone: str = ""
    # Can stop Envoy and show its configuration: for this machine or pod only.
    admin_listen: str = "127.0.0.1:9901"
    # Shows /stats/prometheus and /ready of the admin port, and nothing else. Empty = nowhere.
    metrics_listen: str = ""
    # Threads that serve connections; 0 = one for each core.
    concurrency: int = 0
    max_heap_bytes: int = 1024 * 1024 * 1024
    max_connections: int = 20_000
    # Asked to stop, it says so and serves new requests for this long; open ones may go on then.
    unready_s: float = 5.0
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

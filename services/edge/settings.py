"""Settings of the control plane (BATON_EDGE_*)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from baton.runtime.discovery.addresses import host_and_port

PREFIX = "BATON_EDGE_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Which gateways there are, and how every Envoy shall serve clients."""

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
    # How long a client may take for its TLS handshake, and then for the head of each request.
    head_timeout_s: float = 10.0
    # For a whole request. Above the gateway's 10 s for a body, which has a better answer.
    request_timeout_s: float = 15.0

    def __post_init__(self) -> None:
        if not self.gateways:
            raise ValueError("gateways must name at least one")
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_cert_file and tls_key_file go together")
        for name in ("poll_s", "max_body_bytes", "head_timeout_s", "request_timeout_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0")
        if self.trusted_proxies < 0:
            raise ValueError("trusted_proxies must be 0 or more")
        host_and_port(self.http_listen)

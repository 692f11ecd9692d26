"""Settings of the control plane (BATON_EDGE_*)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from baton.runtime.discovery.addresses import host_and_port

PREFIX = "BATON_EDGE_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The gateways, and every Envoy's side towards clients; each field is one variable."""

    # Address at which Envoys dial this control plane, host:port.
    listen: str = "127.0.0.1:18000"
    # Address of metrics, liveness and readiness, plain HTTP; port 0 = any free one.
    admin_listen: str = "127.0.0.1:0"
    # host:port or host:port@region/zone, where every address of a name is a gateway; or
    # kubernetes:[NAMESPACE/]SERVICE[:PORT] or the same with @region, whose endpoints have zones.
    gateways: tuple[str, ...]
    # Seconds between two rounds in which names are resolved and gateways asked.
    poll_s: float = 1.0
    # The DNS name that gateways' certificates show, over TLS with the certificates of services
    # (BATON_TLS_*, whose paths are the same at Envoy). Empty = plain HTTP.
    gateway_name: str = ""
    # Address at which Envoys listen for clients.
    http_listen: str = "0.0.0.0:8080"
    # Certificate for clients (PEM), by its path at Envoy, read again when its folder changes. None:
    # plain HTTP.
    tls_cert_file: Path | None = None
    # The key of that certificate, in the same way.
    tls_key_file: Path | None = None
    # The authorities of client certificates, at Envoy too; None: certificates are not asked for. A
    # client without one still gets in by its key.
    client_ca_file: Path | None = None
    # An Envoy prefers the gateways of its own region or zone while enough of them are healthy.
    prefer: Literal["region", "zone"] = "region"
    # The number of proxies in front of Envoy whose x-forwarded-for is trusted.
    trusted_proxies: int = 0
    # Clients decide about the sampling of traces, as a mesh in front does; else each request begins
    # a trace, and the gateway links the client's.
    trust_traces: bool = False
    # Largest body of a request. The gateway has the same limit; here a larger content-length is
    # refused at once.
    max_body_bytes: int = 8 * 1024 * 1024
    # The same of a file for a batch.
    max_file_bytes: int = 16 * 1024 * 1024
    # Seconds for a client's TLS handshake, and for the head of each request.
    head_timeout_s: float = 10.0
    # Seconds for a whole request to arrive: above the gateway's 10 s for a body, whose error says
    # more.
    request_timeout_s: float = 15.0

    def __post_init__(self) -> None:
        if not self.gateways:
            raise ValueError("gateways must name at least one")
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_cert_file and tls_key_file go together")
        if self.client_ca_file is not None and self.tls_cert_file is None:
            raise ValueError("client_ca_file needs tls_cert_file")
        for name in (
            "poll_s",
            "max_body_bytes",
            "max_file_bytes",
            "head_timeout_s",
            "request_timeout_s",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0")
        if self.trusted_proxies < 0:
            raise ValueError("trusted_proxies must be 0 or more")
        host_and_port(self.http_listen)

"""Settings of the page, read once at start from the environment."""

from dataclasses import dataclass
from pathlib import Path

from baton.runtime.discovery.addresses import host_and_port

PREFIX = "BATON_PAGE_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The page of one release; each field is one variable."""

    # Address for browsers, host:port: TLS with a certificate, else plain HTTP.
    listen: str = "127.0.0.1:8090"
    # Address of metrics, liveness and readiness, plain HTTP; port 0 = any free one.
    admin_listen: str = "127.0.0.1:0"
    # Address at which services send their spans, OTLP over gRPC without TLS.
    spans_listen: str = "127.0.0.1:4317"
    # The release whose EndpointSlices name the services: the label app.kubernetes.io/instance.
    release: str
    # File with the token that visitors show. It is read for each look: another one ends all
    # sessions.
    token_file: Path
    # File in which spans are kept (SQLite).
    spans_file: Path
    # So large may that file grow; then the oldest spans go.
    spans_bytes: int = 512 * 2**20
    # Another collector that gets the same spans, http[s]://host:port; empty = none.
    forward_to: str = ""
    # The port of metrics, open requests and explanations, at every pod.
    services_port: int = 9090
    # Address of quota's admin API, host:port; empty = tenants are not shown.
    quota_api: str = ""
    # File with the token of that API.
    quota_token_file: Path | None = None
    # Certificate for browsers (PEM), with its key.
    tls_cert_file: Path | None = None
    # The key of that certificate (PEM).
    tls_key_file: Path | None = None
    # Seconds after which a visitor has to log in again.
    session_s: float = 8 * 3600.0

    def __post_init__(self) -> None:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_cert_file and tls_key_file go together")
        if bool(self.quota_api) != (self.quota_token_file is not None):
            raise ValueError("quota_api and quota_token_file go together")
        if not self.release:
            raise ValueError("release must not be empty")
        if self.session_s <= 0:
            raise ValueError("session_s must be above 0")
        if self.spans_bytes < 2**20:
            raise ValueError("spans_bytes must be 1048576 or more")
        for address in (self.listen, self.admin_listen, self.spans_listen):
            host_and_port(address)

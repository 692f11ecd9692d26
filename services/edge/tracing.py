"""The collector of the Envoys' spans, from OpenTelemetry's variables, as in every service."""

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from envoy_data_plane.envoy.config.core.v3 import DataSource, TransportSocket
from envoy_data_plane.envoy.extensions.transport_sockets.tls.v3 import (
    CertificateValidationContext,
    CommonTlsContext,
    SubjectAltNameMatcher,
    SubjectAltNameMatcherSanType,
    UpstreamTlsContext,
)
from envoy_data_plane.envoy.type.matcher.v3 import StringMatcher

from baton.runtime.discovery.addresses import is_address
from baton.runtime.otlp.span_headers import span_headers
from baton.runtime.process import Misconfigured
from services.edge.http_manager import Tracing
from services.edge.messages import packed

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
AUTHORITIES = "OTEL_EXPORTER_OTLP_CERTIFICATE"
# A path on Envoy's machine, not on this one: Debian's file, which Envoy's own images have as well.
PUBLIC_AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"


def tracing_of(environment: Mapping[str, str]) -> Tracing | None:
    """Read the variables; None without an endpoint. Raises Misconfigured, SettingsError."""
    endpoint = environment.get(ENDPOINT, "")
    if not endpoint:
        return None
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port is None:
        raise Misconfigured(f"{ENDPOINT}: Envoy needs http[s]://host:port, not {endpoint!r}")
    ratio = float(environment.get("OTEL_TRACES_SAMPLER_ARG", "1"))
    is_tls = parts.scheme == "https"
    transport = _transport(parts.hostname, environment.get(AUTHORITIES, "")) if is_tls else None
    return Tracing(parts.netloc, 100 * ratio, transport, tuple(span_headers(environment)))


def _transport(host: str, authorities_file: str) -> TransportSocket:
    """TLS to a server that shows a certificate for `host`. Raises Misconfigured."""
    authorities = DataSource(filename=PUBLIC_AUTHORITIES)
    if authorities_file:
        try:
            # The content, because Envoy may not have the file.
            authorities = DataSource(inline_bytes=Path(authorities_file).read_bytes())
        except OSError as error:
            raise Misconfigured(f"{AUTHORITIES}: {error}") from error
    kind = SubjectAltNameMatcherSanType
    name = SubjectAltNameMatcher(
        san_type=kind.IP_ADDRESS if is_address(host) else kind.DNS,
        matcher=StringMatcher(exact=host),
    )
    validation = CertificateValidationContext(
        trusted_ca=authorities, match_typed_subject_alt_names=[name]
    )
    tls = UpstreamTlsContext(
        common_tls_context=CommonTlsContext(validation_context=validation),
        sni="" if is_address(host) else host,
    )
    return TransportSocket(name="envoy.transport_sockets.tls", typed_config=packed(tls))

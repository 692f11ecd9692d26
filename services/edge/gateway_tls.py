"""Mutual TLS from Envoy to the gateways: its own certificate, and the name that gateways show.

The control plane sends paths, not content: Envoy has the files where the control plane has its own,
and reads them again when their folder changes.
"""

from dataclasses import dataclass
from pathlib import Path

from envoy_data_plane.envoy.config.core.v3 import DataSource, TransportSocket, WatchedDirectory
from envoy_data_plane.envoy.extensions.transport_sockets.tls.v3 import (
    CertificateValidationContext,
    CommonTlsContext,
    SdsSecretConfig,
    Secret,
    SubjectAltNameMatcher,
    SubjectAltNameMatcherSanType,
    TlsCertificate,
    UpstreamTlsContext,
)
from envoy_data_plane.envoy.type.matcher.v3 import StringMatcher

from baton.runtime import peer_tls
from services.edge.messages import from_ads, packed

_OWN, _GATEWAYS = "own", "gateway-authorities"


@dataclass(frozen=True, slots=True)
class GatewayTls:
    """The files at Envoy, and the DNS name of every gateway's certificate."""

    cert_file: Path
    key_file: Path
    ca_file: Path
    name: str

    @classmethod
    def of(cls, files: peer_tls.Settings, name: str) -> "GatewayTls | None":
        """None without a name. Raises ValueError when there are no files."""
        if not name:
            return None
        if not (files.cert_file and files.key_file and files.ca_file):
            raise ValueError(f"gateway_name needs the certificate of {peer_tls.PREFIX}*_FILE")
        return cls(files.cert_file, files.key_file, files.ca_file, name)

    def transport(self) -> TransportSocket:
        """The TLS of the connections to gateways."""
        context = CommonTlsContext(
            tls_certificate_sds_secret_configs=[SdsSecretConfig(name=_OWN, sds_config=from_ads())],
            validation_context_sds_secret_config=SdsSecretConfig(
                name=_GATEWAYS, sds_config=from_ads()
            ),
        )
        tls = UpstreamTlsContext(common_tls_context=context, sni=self.name)
        return TransportSocket(name="envoy.transport_sockets.tls", typed_config=packed(tls))

    def secrets(self) -> list[Secret]:
        own = TlsCertificate(
            certificate_chain=DataSource(filename=str(self.cert_file)),
            private_key=DataSource(filename=str(self.key_file)),
            watched_directory=WatchedDirectory(path=str(self.cert_file.parent)),
        )
        name = SubjectAltNameMatcher(
            san_type=SubjectAltNameMatcherSanType.DNS, matcher=StringMatcher(exact=self.name)
        )
        authorities = CertificateValidationContext(
            trusted_ca=DataSource(filename=str(self.ca_file)),
            watched_directory=WatchedDirectory(path=str(self.ca_file.parent)),
            match_typed_subject_alt_names=[name],
        )
        return [
            Secret(name=_OWN, tls_certificate=own),
            Secret(name=_GATEWAYS, validation_context=authorities),
        ]

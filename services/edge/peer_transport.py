"""How an Envoy shows itself to the control plane, and whom it takes for it: the files and the name
that every service has (baton/runtime/peer_tls.py)."""

from pathlib import Path

from envoy_data_plane.envoy.config.core.v3 import (
    ApiVersion,
    ConfigSource,
    DataSource,
    PathConfigSource,
    TransportSocket,
    WatchedDirectory,
)
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
from envoy_data_plane.envoy.service.discovery.v3 import DiscoveryResponse
from envoy_data_plane.envoy.type.matcher.v3 import StringMatcher

from baton.runtime import peer_tls
from services.edge.messages import packed

_OWN, _PEERS = "own", "peers"


def peer_transport(peer: peer_tls.Settings, secrets_folder: Path | None) -> TransportSocket | None:
    """None without certificates. With `secrets_folder` (see `secret_files`) renewed files are taken
    as they come; without, at Envoy's next start."""
    if peer.cert_file is None:
        return None
    if secrets_folder is None:
        context = CommonTlsContext(
            tls_certificates=[_certificate(peer)], validation_context=_validation(peer)
        )
    else:
        context = CommonTlsContext(
            tls_certificate_sds_secret_configs=[_from_file(secrets_folder, _OWN)],
            validation_context_sds_secret_config=_from_file(secrets_folder, _PEERS),
        )
    tls = UpstreamTlsContext(common_tls_context=context, sni=peer.peer_name)
    return TransportSocket(name="envoy.transport_sockets.tls", typed_config=packed(tls))


def secret_files(peer: peer_tls.Settings) -> dict[str, str]:
    """What belongs into a secrets folder, by file name: where the files are, not what is in them.
    Envoy takes one secret from each."""
    secrets = [
        Secret(name=_OWN, tls_certificate=_certificate(peer)),
        Secret(name=_PEERS, validation_context=_validation(peer)),
    ]
    return {
        _file_name(secret.name): DiscoveryResponse(resources=[packed(secret)]).to_json()
        for secret in secrets
    }


def _from_file(folder: Path, name: str) -> SdsSecretConfig:
    path = PathConfigSource(path=str(folder / _file_name(name)))
    source = ConfigSource(path_config_source=path, resource_api_version=ApiVersion.V3)
    return SdsSecretConfig(name=name, sds_config=source)


def _file_name(name: str) -> str:
    return f"{name}.json"


def _certificate(peer: peer_tls.Settings) -> TlsCertificate:
    assert peer.cert_file is not None
    return TlsCertificate(
        certificate_chain=DataSource(filename=str(peer.cert_file)),
        private_key=DataSource(filename=str(peer.key_file)),
        watched_directory=WatchedDirectory(path=str(peer.cert_file.parent)),
    )


def _validation(peer: peer_tls.Settings) -> CertificateValidationContext:
    assert peer.ca_file is not None
    name = SubjectAltNameMatcher(
        san_type=SubjectAltNameMatcherSanType.DNS, matcher=StringMatcher(exact=peer.peer_name)
    )
    return CertificateValidationContext(
        trusted_ca=DataSource(filename=str(peer.ca_file)),
        watched_directory=WatchedDirectory(path=str(peer.ca_file.parent)),
        match_typed_subject_alt_names=[name],
    )

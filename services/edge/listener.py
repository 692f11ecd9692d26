"""The listener for clients: TLS, connections, buffers and time limits.

Buffers are small on purpose. The gateway gives a stream credit for bytes that were taken from it,
so the bytes in Envoy and its sockets are the cost of a stopped reader beyond its credit.
"""

from dataclasses import dataclass

from envoy_data_plane.envoy.config.core.v3 import (
    DataSource,
    TcpKeepalive,
    TransportSocket,
    WatchedDirectory,
)
from envoy_data_plane.envoy.config.listener.v3 import FilterChain, Listener
from envoy_data_plane.envoy.extensions.transport_sockets.tls.v3 import (
    CertificateValidationContext,
    CommonTlsContext,
    DownstreamTlsContext,
    SdsSecretConfig,
    Secret,
    TlsCertificate,
    TlsParameters,
    TlsParametersTlsProtocol,
)

from services.edge.clusters import BUFFER_BYTES
from services.edge.http_manager import Tracing, http_manager
from services.edge.messages import (
    address,
    from_ads,
    http_filter,
    packed,
    seconds,
    send_buffer,
)
from services.edge.settings import Settings

CERTIFICATE = "client-facing"
_SEND_BUFFER_BYTES = 32 * 1024
# Finds clients that vanished without closing. The gateway notices one that reads nothing:
# TCP_USER_TIMEOUT would also cut a steady reader whose window opens a little at a time.
_KEEPALIVE = TcpKeepalive(keepalive_time=30, keepalive_interval=10, keepalive_probes=3)


@dataclass(frozen=True, slots=True)
class ClientSide:
    """The settings of the client side."""

    settings: Settings
    tracing: Tracing | None


def listener(side: ClientSide) -> Listener:
    manager = http_manager(side.settings, side.tracing)
    chain = FilterChain(
        filters=[http_filter(manager)],
        transport_socket=_tls(side.settings) if side.settings.tls_cert_file else None,
        transport_socket_connect_timeout=seconds(side.settings.head_timeout_s),
    )
    return Listener(
        name="clients",
        address=address(side.settings.http_listen),
        filter_chains=[chain],
        per_connection_buffer_limit_bytes=BUFFER_BYTES,
        socket_options=[send_buffer(_SEND_BUFFER_BYTES)],
        tcp_keepalive=_KEEPALIVE,
    )


def certificate(settings: Settings) -> Secret | None:
    """The paths of Envoy's certificate and key; the control plane never reads the files."""
    if settings.tls_cert_file is None:
        return None
    return Secret(
        name=CERTIFICATE,
        tls_certificate=TlsCertificate(
            certificate_chain=DataSource(filename=str(settings.tls_cert_file)),
            private_key=DataSource(filename=str(settings.tls_key_file)),
            watched_directory=WatchedDirectory(path=str(settings.tls_cert_file.parent)),
        ),
    )


def _tls(settings: Settings) -> TransportSocket:
    authorities = None
    if settings.client_ca_file is not None:
        authorities = CertificateValidationContext(
            trusted_ca=DataSource(filename=str(settings.client_ca_file)),
            watched_directory=WatchedDirectory(path=str(settings.client_ca_file.parent)),
        )
    context = DownstreamTlsContext(
        common_tls_context=CommonTlsContext(
            tls_params=TlsParameters(
                tls_minimum_protocol_version=TlsParametersTlsProtocol.TLSv1_2,
            ),
            tls_certificate_sds_secret_configs=[
                SdsSecretConfig(name=CERTIFICATE, sds_config=from_ads())
            ],
            alpn_protocols=["h2", "http/1.1"],
            validation_context=authorities,
        )
    )
    return TransportSocket(name="envoy.transport_sockets.tls", typed_config=packed(context))

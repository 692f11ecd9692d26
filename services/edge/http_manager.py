"""Envoy's HTTP for clients: limits, removed and added headers, access log and spans.

Follows "Configuring Envoy as an edge proxy" with one exception: a stream has no idle timeout. The
gateway's deadlines end it, and an answer that is not streamed is silent until it is complete.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from envoy_data_plane.envoy.config.accesslog.v3 import AccessLog
from envoy_data_plane.envoy.config.common.mutation_rules.v3 import (
    HeaderMutation as Mutation,
)
from envoy_data_plane.envoy.config.common.mutation_rules.v3 import HeaderMutationRemoveOnMatch
from envoy_data_plane.envoy.config.core.v3 import (
    GrpcService,
    GrpcServiceEnvoyGrpc,
    HeaderValue,
    HeaderValueOption,
    Http1ProtocolOptions,
    Http2ProtocolOptions,
    HttpProtocolOptions,
    HttpProtocolOptionsHeadersWithUnderscoresAction,
    KeepaliveSettings,
    SubstitutionFormatString,
    TransportSocket,
    TypedExtensionConfig,
)
from envoy_data_plane.envoy.config.route.v3 import HeaderMatcher
from envoy_data_plane.envoy.config.trace.v3 import OpenTelemetryConfig, TracingHttp
from envoy_data_plane.envoy.extensions.access_loggers.stream.v3 import StdoutAccessLog
from envoy_data_plane.envoy.extensions.filters.http.health_check.v3 import HealthCheck
from envoy_data_plane.envoy.extensions.filters.http.router.v3 import Router
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    HttpConnectionManager,
    HttpConnectionManagerCodecType,
    HttpConnectionManagerForwardClientCertDetails,
    HttpConnectionManagerInternalAddressConfig,
    HttpConnectionManagerPathWithEscapedSlashesAction,
    HttpConnectionManagerSetCurrentClientCertDetails,
    HttpConnectionManagerTracing,
    HttpFilter,
    RequestIdExtension,
)
from envoy_data_plane.envoy.extensions.http.early_header_mutation.header_mutation.v3 import (
    HeaderMutation,
)
from envoy_data_plane.envoy.extensions.request_id.uuid.v3 import UuidRequestIdConfig
from envoy_data_plane.envoy.extensions.tracers.opentelemetry.resource_detectors.v3 import (
    EnvironmentResourceDetectorConfig,
)
from envoy_data_plane.envoy.type.matcher.v3 import StringMatcher
from envoy_data_plane.envoy.type.tracing.v3 import CustomTag
from envoy_data_plane.envoy.type.v3 import Percent
from envoy_data_plane.google.protobuf import Struct

from baton.wire.limits import MAX_HEAD_KIB, MAX_HEADERS
from services.edge.clusters import READY_PATH
from services.edge.local_replies import local_replies
from services.edge.messages import extension, packed, seconds
from services.edge.routes import routes
from services.edge.settings import Settings

STAT_PREFIX = "edge"
# The name of the collector's cluster.
SPANS = "spans"
# The gateway's own limit.
IDLE_CONNECTION_S = 300.0
# The time that a client has to take the rest of an ended answer.
FLUSH_TIMEOUT_S = 60.0
MAX_STREAMS = 100
_MAX_ID_CHARS = 128
_TRACE_HEADER = "traceparent"
_TRACE_CHARS = 55
# The gateway's name of it (services/gateway/http/trace_border.py).
CLIENT_TRACE_HEADER = "x-baton-client-traceparent"
# The name of Envoy's spans; "edge" is its control plane.
_SERVICE = "baton-envoy"
_STREAM_WINDOW_BYTES = 64 * 1024
_CONNECTION_WINDOW_BYTES = 1024 * 1024
# Only the gateway identifies clients. Headers that other proxies and fleets use to do so:
_IDENTITY_PREFIXES = (
    "x-baton-",
    "x-tenant",
    "x-user",
    "x-auth-",
    "x-forwarded-user",
    "x-forwarded-email",
    "x-forwarded-groups",
    "x-forwarded-preferred-username",
    "x-remote-user",
    "x-original-",
    # Headers that steer a request inside a fleet (Gateway API Inference Extension, llm-d).
    "x-gateway-",
    "x-prefiller-",
    "x-kv-cache-",
    "x-llm-d-",
)


@dataclass(frozen=True, slots=True)
class Tracing:
    """The collector of Envoy's spans, and the share of requests without a trace that begin one."""

    endpoint: str
    percent: float
    # None = plaintext.
    transport: TransportSocket | None = None
    # Names of headers; each Envoy has the values itself (baton/runtime/otlp/span_headers.py).
    header_names: tuple[str, ...] = ()


def http_manager(settings: Settings, tracing: Tracing | None) -> HttpConnectionManager:
    """The connection manager for HTTP/1.1 and HTTP/2 on one port."""
    return HttpConnectionManager(
        codec_type=HttpConnectionManagerCodecType.AUTO,
        stat_prefix=STAT_PREFIX,
        route_config=routes(settings.max_body_bytes, settings.max_file_bytes),
        http_filters=_filters(),
        common_http_protocol_options=HttpProtocolOptions(
            idle_timeout=seconds(IDLE_CONNECTION_S),
            max_headers_count=MAX_HEADERS,
            headers_with_underscores_action=(
                HttpProtocolOptionsHeadersWithUnderscoresAction.REJECT_REQUEST
            ),
        ),
        # A request with both Content-Length and Transfer-Encoding, or otherwise ambiguous, ends its
        # connection.
        http_protocol_options=Http1ProtocolOptions(allow_chunked_length=False),
        http2_protocol_options=_http2(),
        stream_error_on_invalid_http_message=False,
        max_request_headers_kb=MAX_HEAD_KIB,
        request_headers_timeout=seconds(settings.head_timeout_s),
        request_timeout=seconds(settings.request_timeout_s),
        stream_idle_timeout=timedelta(0),
        stream_flush_timeout=seconds(FLUSH_TIMEOUT_S),
        use_remote_address=True,
        xff_num_trusted_hops=settings.trusted_proxies,
        # No address counts as internal.
        internal_address_config=HttpConnectionManagerInternalAddressConfig(),
        early_header_mutation_extensions=_early_mutations(settings),
        **_client_certificates(settings),
        normalize_path=True,
        path_with_escaped_slashes_action=(
            HttpConnectionManagerPathWithEscapedSlashesAction.KEEP_UNCHANGED
        ),
        generate_request_id=True,
        request_id_extension=_request_ids(),
        # The client's own goes on to the gateway, whose own comes back.
        preserve_external_request_id=True,
        tracing=_tracing(settings, tracing) if tracing else None,
        access_log=[_access_log()],
        local_reply_config=local_replies(),
    )


def _client_certificates(settings: Settings) -> dict[str, Any]:
    """What gateways are told of a client's certificate, which Envoy has checked. What a client says
    of itself is always removed."""
    if settings.client_ca_file is None:
        return {}
    return {
        "forward_client_cert_details": HttpConnectionManagerForwardClientCertDetails.SANITIZE_SET,
        "set_current_client_cert_details": HttpConnectionManagerSetCurrentClientCertDetails(
            subject=True, uri=True, dns=True
        ),
    }


def _http2() -> Http2ProtocolOptions:
    return Http2ProtocolOptions(
        max_concurrent_streams=MAX_STREAMS,
        initial_stream_window_size=_STREAM_WINDOW_BYTES,
        initial_connection_window_size=_CONNECTION_WINDOW_BYTES,
        connection_keepalive=KeepaliveSettings(interval=seconds(30), timeout=seconds(10)),
    )


def _filters() -> list[HttpFilter]:
    # Envoy's own readiness: 503 from the moment it is asked to stop.
    own = HeaderMatcher(name=":path", string_match=StringMatcher(exact=READY_PATH))
    health = HealthCheck(pass_through_mode=False, headers=[own])
    router = Router(suppress_envoy_headers=True)
    return [
        HttpFilter(name="envoy.filters.http.health_check", typed_config=packed(health)),
        HttpFilter(name="envoy.filters.http.router", typed_config=packed(router)),
    ]


def _stripped_headers() -> TypedExtensionConfig:
    mutations = [
        Mutation(
            remove_on_match=HeaderMutationRemoveOnMatch(key_matcher=StringMatcher(prefix=prefix))
        )
        for prefix in _IDENTITY_PREFIXES
    ]
    return extension(
        "envoy.http.early_header_mutation.header_mutation", HeaderMutation(mutations=mutations)
    )


def _early_mutations(settings: Settings) -> list[TypedExtensionConfig]:
    """Changes of a request's headers before anything looks at them, also at its trace."""
    stripped = [_stripped_headers()]
    return stripped if settings.trust_traces else [*stripped, _own_traces()]


def _own_traces() -> TypedExtensionConfig:
    """Every request begins a trace of ours, of which the client's is told to the gateway, for a
    link (decision 0084). A client neither forces nor hides sampling."""
    told = HeaderValue(key=CLIENT_TRACE_HEADER, value=f"%REQ({_TRACE_HEADER}):{_TRACE_CHARS}%")
    mutations = [
        Mutation(append=HeaderValueOption(header=told, keep_empty_value=False)),
        *(Mutation(remove=name) for name in (_TRACE_HEADER, "tracestate", "x-client-trace-id")),
    ]
    return extension(
        "envoy.http.early_header_mutation.header_mutation", HeaderMutation(mutations=mutations)
    )


def _request_ids() -> RequestIdExtension:
    """Plain UUIDs as request ids, without bits of the trace."""
    plain = UuidRequestIdConfig(pack_trace_reason=False, use_request_id_for_trace_sampling=False)
    return RequestIdExtension(typed_config=packed(plain))


def _tracing(settings: Settings, tracing: Tracing) -> HttpConnectionManagerTracing:
    provider = OpenTelemetryConfig(
        grpc_service=GrpcService(envoy_grpc=GrpcServiceEnvoyGrpc(cluster_name=SPANS)),
        service_name=_SERVICE,
        resource_detectors=[_resource()],
    )
    return HttpConnectionManagerTracing(
        random_sampling=Percent(value=tracing.percent),
        # Of requests with x-client-trace-id, which Envoy would always sample.
        client_sampling=Percent(value=100.0 if settings.trust_traces else 0.0),
        # The call to the gateway, with each of its tries, below Envoy's own side of the request.
        spawn_upstream_span=True,
        # Of a route, not of a path: the names of spans are few.
        operation="%REQ(:METHOD)% %ROUTE_NAME%",
        upstream_operation="%REQ(:METHOD)%",
        provider=TracingHttp(name="envoy.tracers.opentelemetry", typed_config=packed(provider)),
        custom_tags=[
            CustomTag(tag="http.route", value="%ROUTE_NAME%"),
            CustomTag(tag="baton.request_id", value="%RESP(X-REQUEST-ID)%"),
            # Envoy's own value would contain the query.
            CustomTag(tag="http.url", value="%REQ(:SCHEME)%://%REQ(:AUTHORITY)%%PATH(NQ)%"),
        ],
    )


def _resource() -> TypedExtensionConfig:
    """What OTEL_RESOURCE_ATTRIBUTES says of this Envoy: its pod, namespace and version."""
    return extension(
        "envoy.tracers.opentelemetry.resource_detectors.environment",
        EnvironmentResourceDetectorConfig(),
    )


def _access_log() -> AccessLog:
    """One JSON line a request: no query, and of the headers only request ids and user agent."""
    fields = {
        "time": "%START_TIME%",
        "service": "envoy",
        "event": "request",
        "request_id": "%RESP(X-REQUEST-ID)%",
        "client_request_id": f"%REQ(X-REQUEST-ID):{_MAX_ID_CHARS}%",
        "trace_id": "%TRACE_ID%",
        "method": "%REQ(:METHOD)%",
        "path": "%PATH(NQ):256%",
        "protocol": "%PROTOCOL%",
        "status": "%RESPONSE_CODE%",
        "details": "%RESPONSE_CODE_DETAILS%",
        "flags": "%RESPONSE_FLAGS%",
        "num_attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
        "received_bytes": "%BYTES_RECEIVED%",
        "sent_bytes": "%BYTES_SENT%",
        "duration_ms": "%DURATION%",
        "first_byte_ms": "%RESPONSE_DURATION%",
        "client": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
        "user_agent": "%REQ(USER-AGENT):200%",
        "gateway": "%UPSTREAM_HOST%",
    }
    line = StdoutAccessLog(
        log_format=SubstitutionFormatString(json_format=Struct.from_dict(fields))
    )
    return AccessLog(name="envoy.access_loggers.stdout", typed_config=packed(line))

"""The cluster of the gateways, whose members come by EDS.

A gateway is ejected for a while by consecutive failures: connections that cannot be made or break,
and errors of its own (500 to 502); never by a 429, 503 or 504. A gateway says itself whether it
takes requests. The control plane reads that, and so does Envoy's own health check: a gateway that
dies while the control plane is away gets no more requests within seconds.

A gateway whose machine is silent loses its connections, too. That is told by its kernel, which
answers for a gateway that is merely slow: a failed health check would also end the streams of one
that drains.
"""

from envoy_data_plane.envoy.config.cluster.v3 import (
    CircuitBreakers,
    CircuitBreakersThresholds,
    CircuitBreakersThresholdsRetryBudget,
    Cluster,
    ClusterCommonLbConfig,
    ClusterDiscoveryType,
    ClusterEdsClusterConfig,
    ClusterLbPolicy,
    OutlierDetection,
    UpstreamConnectionOptions,
)
from envoy_data_plane.envoy.config.common.matcher.v3 import HttpHeadersMatch, MatchPredicate
from envoy_data_plane.envoy.config.core.v3 import (
    BindConfig,
    HealthCheck,
    HealthCheckHttpHealthCheck,
    Http1ProtocolOptions,
    HttpProtocolOptions,
    TcpKeepalive,
)
from envoy_data_plane.envoy.config.route.v3 import HeaderMatcher
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import (
    HttpProtocolOptions as UpstreamProtocol,
)
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import (
    HttpProtocolOptionsExplicitHttpConfig,
    HttpProtocolOptionsOutlierDetection,
)
from envoy_data_plane.envoy.type.v3 import Int64Range, Percent

from services.edge.gateway_tls import GatewayTls
from services.edge.messages import from_ads, packed, receive_buffer, seconds, user_timeout

GATEWAYS = "gateways"
READY_PATH = "/readyz"

# The bytes that Envoy reads ahead of a slow client. The gateway gives credit for bytes that were
# taken from it.
BUFFER_BYTES = 32 * 1024
RECEIVE_BUFFER_BYTES = 16 * 1024
CONNECT_TIMEOUT_S = 2.0
# A gateway whose kernel acknowledges nothing for so long is lost, whether something was sent to it
# (user timeout) or an answer is awaited (keepalive).
_SILENCE_S = 5.0
_KEEPALIVE = TcpKeepalive(keepalive_time=2, keepalive_interval=1, keepalive_probes=3)
# Shorter than the gateway's 75 s, so that it never closes a connection just as a request is sent.
_IDLE_S = 60.0
# These only bound Envoy's memory: the gateway has its own limits, and its own errors for them.
_MAX_REQUESTS = 100_000
_MIN_RETRIES = 32
# Consecutive failures, after which a gateway is ejected.
_MAX_FAILURES = 5
PROTOCOL = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def gateway_cluster(tls: GatewayTls | None = None) -> Cluster:
    """The cluster of all gateways. HTTP/1.1, because uvicorn speaks nothing else."""
    protocol = UpstreamProtocol(
        common_http_protocol_options=HttpProtocolOptions(idle_timeout=seconds(_IDLE_S)),
        explicit_http_config=HttpProtocolOptionsExplicitHttpConfig(
            http_protocol_options=Http1ProtocolOptions()
        ),
        outlier_detection=HttpProtocolOptionsOutlierDetection(error_matcher=_own_errors()),
    )
    return Cluster(
        name=GATEWAYS,
        type=ClusterDiscoveryType.EDS,
        eds_cluster_config=ClusterEdsClusterConfig(eds_config=from_ads()),
        connect_timeout=seconds(CONNECT_TIMEOUT_S),
        transport_socket=tls.transport() if tls else None,
        per_connection_buffer_limit_bytes=BUFFER_BYTES,
        upstream_bind_config=BindConfig(
            socket_options=[receive_buffer(RECEIVE_BUFFER_BYTES), user_timeout(_SILENCE_S)]
        ),
        upstream_connection_options=UpstreamConnectionOptions(tcp_keepalive=_KEEPALIVE),
        lb_policy=ClusterLbPolicy.LEAST_REQUEST,
        # Unready gateways get requests only when no gateway is ready. Their refusal has a reason
        # and a time to come back, which "no healthy upstream" lacks.
        common_lb_config=ClusterCommonLbConfig(
            healthy_panic_threshold=Percent(value=1),
            # By default Envoy applies a host's new state up to a second late.
            update_merge_window=seconds(0),
        ),
        health_checks=[_health_check()],
        outlier_detection=_outlier_detection(),
        circuit_breakers=_circuit_breakers(),
        ignore_health_on_host_removal=True,
        typed_extension_protocol_options={PROTOCOL: packed(protocol)},
    )


def _health_check() -> HealthCheck:
    """Envoy's check of a gateway's readiness: a 503 counts at once, silence the third time."""
    every = seconds(1)
    return HealthCheck(
        timeout=seconds(2),
        interval=every,
        no_traffic_interval=every,
        unhealthy_threshold=3,
        healthy_threshold=1,
        http_health_check=HealthCheckHttpHealthCheck(path=READY_PATH, host="edge"),
    )


def _own_errors() -> MatchPredicate:
    """The answers that count as "5xx" for outlier detection."""
    status = HeaderMatcher(name=":status", range_match=Int64Range(start=500, end=503))
    return MatchPredicate(http_response_headers_match=HttpHeadersMatch(headers=[status]))


def _outlier_detection() -> OutlierDetection:
    """Ejection after consecutive failures: broken connections and the gateway's own errors."""
    return OutlierDetection(
        consecutive_5xx=_MAX_FAILURES,
        enforcing_consecutive_5xx=100,
        enforcing_consecutive_gateway_failure=0,
        enforcing_success_rate=0,
        enforcing_failure_percentage=0,
        interval=seconds(1),
        base_ejection_time=seconds(5),
        max_ejection_time=seconds(60),
        max_ejection_percent=50,
        # A gateway that fails every request may still say that it is ready.
        successful_active_health_check_uneject_host=False,
    )


def _circuit_breakers() -> CircuitBreakers:
    budget = CircuitBreakersThresholdsRetryBudget(
        budget_percent=Percent(value=20), min_retry_concurrency=_MIN_RETRIES
    )
    return CircuitBreakers(
        thresholds=[
            CircuitBreakersThresholds(
                max_connections=_MAX_REQUESTS,
                max_pending_requests=_MAX_REQUESTS,
                max_requests=_MAX_REQUESTS,
                retry_budget=budget,
            )
        ]
    )

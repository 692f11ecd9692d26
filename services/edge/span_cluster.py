"""The cluster of the collector, and the headers of every export of spans.

Only Envoy knows the values of the headers (baton/runtime/otlp/span_headers.py): they are secrets,
and Envoy's admin port shows the configuration that a control plane sends. Envoy 1.40 sends the
tracer's own `initial_metadata` without substituting variables; a filter of the cluster inserts the
values.
"""

from envoy_data_plane.envoy.config.cluster.v3 import Cluster, ClusterDiscoveryType
from envoy_data_plane.envoy.config.common.mutation_rules.v3 import HeaderMutation as Mutation
from envoy_data_plane.envoy.config.core.v3 import (
    HeaderValue,
    HeaderValueOption,
    HeaderValueOptionHeaderAppendAction,
    Http2ProtocolOptions,
    KeepaliveSettings,
)
from envoy_data_plane.envoy.config.endpoint.v3 import (
    ClusterLoadAssignment,
    Endpoint,
    LbEndpoint,
    LocalityLbEndpoints,
)
from envoy_data_plane.envoy.extensions.filters.http.header_mutation.v3 import (
    HeaderMutation,
    Mutations,
)
from envoy_data_plane.envoy.extensions.filters.http.upstream_codec.v3 import UpstreamCodec
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpFilter
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import (
    HttpProtocolOptions as UpstreamProtocol,
)
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import (
    HttpProtocolOptionsExplicitHttpConfig,
)

from baton.runtime.otlp.span_headers import variable_of
from services.edge.clusters import CONNECT_TIMEOUT_S, PROTOCOL
from services.edge.http_manager import SPANS, Tracing
from services.edge.messages import address, packed, seconds


def span_cluster(tracing: Tracing) -> Cluster:
    """The collector's cluster, over gRPC; its name may stand for several addresses."""
    keepalive = KeepaliveSettings(interval=seconds(10), timeout=seconds(5))
    protocol = UpstreamProtocol(
        explicit_http_config=HttpProtocolOptionsExplicitHttpConfig(
            http2_protocol_options=Http2ProtocolOptions(connection_keepalive=keepalive)
        ),
        http_filters=_filters(tracing.header_names) if tracing.header_names else [],
    )
    endpoint = LbEndpoint(endpoint=Endpoint(address=address(tracing.endpoint)))
    return Cluster(
        name=SPANS,
        type=ClusterDiscoveryType.STRICT_DNS,
        connect_timeout=seconds(CONNECT_TIMEOUT_S),
        transport_socket=tracing.transport,
        load_assignment=ClusterLoadAssignment(
            cluster_name=SPANS, endpoints=[LocalityLbEndpoints(lb_endpoints=[endpoint])]
        ),
        typed_extension_protocol_options={PROTOCOL: packed(protocol)},
    )


def _filters(header_names: tuple[str, ...]) -> list[HttpFilter]:
    put = HeaderMutation(
        mutations=Mutations(request_mutations=[_put(name) for name in header_names])
    )
    return [
        HttpFilter(name="envoy.filters.http.header_mutation", typed_config=packed(put)),
        HttpFilter(name="envoy.filters.http.upstream_codec", typed_config=packed(UpstreamCodec())),
    ]


def _put(name: str) -> Mutation:
    header = HeaderValue(key=name, value=f"%ENVIRONMENT({variable_of(name)})%")
    replace = HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD
    return Mutation(append=HeaderValueOption(header=header, append_action=replace))

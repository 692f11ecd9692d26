"""EDS: the gateways in one Envoy's order, nearest first.

Envoy uses the lowest priority while its members are healthy. As soon as fewer than 100/1.4 = 71 %
of them are (its overprovisioning factor), the next priorities take over in part.
"""

from collections import defaultdict
from collections.abc import Iterable

from envoy_data_plane.envoy.config.core.v3 import Address, HealthStatus, Locality, SocketAddress
from envoy_data_plane.envoy.config.endpoint.v3 import (
    ClusterLoadAssignment,
    Endpoint,
    LbEndpoint,
    LocalityLbEndpoints,
)

from services.edge.clusters import GATEWAYS
from services.edge.discovery import GatewayReplica, GatewayState, Location

_HEALTH = {
    GatewayState.READY: HealthStatus.HEALTHY,
    GatewayState.UNREADY: HealthStatus.UNHEALTHY,
    GatewayState.DRAINING: HealthStatus.DRAINING,
}


def load_assignment(
    replicas: Iterable[GatewayReplica], own: Location, prefer: str
) -> ClusterLoadAssignment:
    """The gateways for an Envoy at `own`; independent of the order of `replicas`."""
    by_location: dict[Location, list[GatewayReplica]] = defaultdict(list)
    for replica in replicas:
        by_location[replica.location].append(replica)
    distances = {location: _distance(location, own, prefer) for location in by_location}
    # Envoy wants priorities without gaps.
    priorities = {distance: rank for rank, distance in enumerate(sorted(set(distances.values())))}
    return ClusterLoadAssignment(
        cluster_name=GATEWAYS,
        endpoints=[
            LocalityLbEndpoints(
                locality=Locality(region=location.region, zone=location.zone),
                priority=priorities[distances[location]],
                lb_endpoints=[_endpoint(replica) for replica in _ordered(by_location[location])],
            )
            for location in sorted(by_location)
        ],
    )


def _distance(location: Location, own: Location, prefer: str) -> int:
    """The rank of a location as seen from `own`; 0 = preferred."""
    if location.region != own.region:
        return 2
    return 1 if prefer == "zone" and location.zone != own.zone else 0


def _ordered(replicas: list[GatewayReplica]) -> list[GatewayReplica]:
    return sorted(replicas, key=lambda replica: (replica.address, replica.port))


def _endpoint(replica: GatewayReplica) -> LbEndpoint:
    socket = SocketAddress(address=replica.address, port_value=replica.port)
    return LbEndpoint(
        endpoint=Endpoint(address=Address(socket_address=socket)),
        health_status=_HEALTH[replica.state],
    )

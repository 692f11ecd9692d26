"""EDS: the gateways as one Envoy shall see them, nearest first.

Envoy fills the lowest priority whose members are healthy and lets the next ones take over in part
as soon as fewer than 100/1.4 = 71 % of them are (its overprovisioning factor).
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
from services.edge.discovery import GatewayReplica, GatewayState, Place

_HEALTH = {
    GatewayState.READY: HealthStatus.HEALTHY,
    GatewayState.UNREADY: HealthStatus.UNHEALTHY,
    GatewayState.DRAINING: HealthStatus.DRAINING,
}


def load_assignment(
    replicas: Iterable[GatewayReplica], own: Place, prefer: str
) -> ClusterLoadAssignment:
    """The same for the same replicas, whatever their order."""
    by_place: dict[Place, list[GatewayReplica]] = defaultdict(list)
    for replica in replicas:
        by_place[replica.place].append(replica)
    distances = {place: _distance(place, own, prefer) for place in by_place}
    # Envoy wants priorities without gaps.
    priorities = {distance: rank for rank, distance in enumerate(sorted(set(distances.values())))}
    return ClusterLoadAssignment(
        cluster_name=GATEWAYS,
        endpoints=[
            LocalityLbEndpoints(
                locality=Locality(region=place.region, zone=place.zone),
                priority=priorities[distances[place]],
                lb_endpoints=[_endpoint(replica) for replica in _ordered(by_place[place])],
            )
            for place in sorted(by_place)
        ],
    )


def _distance(place: Place, own: Place, prefer: str) -> int:
    """0 = preferred."""
    if place.region != own.region:
        return 2
    return 1 if prefer == "zone" and place.zone != own.zone else 0


def _ordered(replicas: list[GatewayReplica]) -> list[GatewayReplica]:
    return sorted(replicas, key=lambda replica: (replica.address, replica.port))


def _endpoint(replica: GatewayReplica) -> LbEndpoint:
    socket = SocketAddress(address=replica.address, port_value=replica.port)
    return LbEndpoint(
        endpoint=Endpoint(address=Address(socket_address=socket)),
        health_status=_HEALTH[replica.state],
    )

"""The ADS protocol without a network."""

import random
from typing import Any

import pytest
from envoy_data_plane.envoy.config.core.v3 import HealthStatus, Locality, Node
from envoy_data_plane.envoy.config.endpoint.v3 import ClusterLoadAssignment
from envoy_data_plane.envoy.service.discovery.v3 import DiscoveryRequest
from envoy_data_plane.google.rpc import Status

from services.edge.ads import Session
from services.edge.configuration import CLUSTERS, ENDPOINTS, LISTENERS, ORDER, Configuration
from services.edge.discovery import GatewayReplica, GatewayState, Location
from services.edge.endpoints import load_assignment
from services.edge.listener import ClientSide
from services.edge.settings import Settings

HERE, NEXT, FAR = Location("r1", "a"), Location("r1", "b"), Location("r2", "a")


def replica(
    number: int, location: Location = HERE, state: Any = GatewayState.READY
) -> GatewayReplica:
    return GatewayReplica(f"10.0.0.{number}", 8080, location, state)


@pytest.fixture
def configuration() -> Configuration:
    return Configuration(ClientSide(Settings(gateways=("gw:8080",)), None))


def subscribe(session: Session, *kinds: str) -> None:
    node = Node(id="envoy-1", locality=Locality(region=HERE.region, zone=HERE.zone))
    for kind in kinds:
        session.take(DiscoveryRequest(type_url=kind, node=node))


def kinds(session: Session) -> list[str]:
    return [response.type_url for response in session.due()]


def test_nothing_is_said_before_gateways_are_known(configuration: Configuration) -> None:
    session = Session(configuration)
    subscribe(session, *ORDER)
    assert kinds(session) == []
    configuration.found([])
    assert kinds(session) == list(ORDER), "what is referred to comes first"
    assert kinds(session) == []


def test_only_what_changed_is_sent_again(configuration: Configuration) -> None:
    configuration.found([replica(1)])
    session = Session(configuration)
    subscribe(session, *ORDER)
    list(session.due())
    configuration.found([replica(1)])
    assert kinds(session) == []
    configuration.found([replica(1), replica(2)])
    assert kinds(session) == [ENDPOINTS]


def test_a_refused_version_is_not_sent_again(configuration: Configuration) -> None:
    configuration.found([replica(1)])
    session = Session(configuration)
    subscribe(session, LISTENERS, ENDPOINTS)
    for response in list(session.due()):
        refusal = Status(code=3, message="no")
        session.take(
            DiscoveryRequest(
                type_url=response.type_url, response_nonce=response.nonce, error_detail=refusal
            )
        )
    assert kinds(session) == []
    configuration.found([replica(2)])
    assert kinds(session) == [ENDPOINTS]


def test_an_answer_to_something_older_changes_nothing(configuration: Configuration) -> None:
    configuration.found([replica(1)])
    session = Session(configuration)
    subscribe(session, ENDPOINTS)
    (old,) = session.due()
    configuration.found([replica(2)])
    list(session.due())
    session.take(
        DiscoveryRequest(
            type_url=ENDPOINTS, response_nonce=old.nonce, resource_names=["something else"]
        )
    )
    assert kinds(session) == []


def test_a_new_control_plane_says_what_the_last_one_said(configuration: Configuration) -> None:
    replicas = [replica(1), replica(2, FAR), replica(3, NEXT)]
    configuration.found(replicas)
    other = Configuration(ClientSide(Settings(gateways=("gw:8080",)), None))
    other.found(random.Random(1).sample(replicas, 3))
    said = []
    for plane in (configuration, other):
        session = Session(plane)
        subscribe(session, CLUSTERS, ENDPOINTS, LISTENERS)
        said.append([bytes(response) for response in session.due()])
    assert said[0] == said[1]


def priorities(assignment: ClusterLoadAssignment) -> dict[Location, int]:
    return {
        Location(group.locality.region, group.locality.zone): group.priority
        for group in assignment.endpoints
        if group.locality is not None
    }


def test_near_gateways_come_first_and_priorities_have_no_gaps() -> None:
    all_of_them = [replica(1, HERE), replica(2, NEXT), replica(3, FAR)]
    assert priorities(load_assignment(all_of_them, HERE, "region")) == {HERE: 0, NEXT: 0, FAR: 1}
    assert priorities(load_assignment(all_of_them, HERE, "zone")) == {HERE: 0, NEXT: 1, FAR: 2}
    assert priorities(load_assignment(all_of_them[2:], HERE, "zone")) == {FAR: 0}


def test_a_gateway_that_wants_nothing_stays_listed() -> None:
    assignment = load_assignment(
        [replica(1, state=GatewayState.UNREADY), replica(2, state=GatewayState.DRAINING)],
        HERE,
        "region",
    )
    (group,) = assignment.endpoints
    health = [endpoint.health_status for endpoint in group.lb_endpoints]
    assert health == [HealthStatus.UNHEALTHY, HealthStatus.DRAINING]

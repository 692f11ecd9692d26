"""Gateways that a Kubernetes Service lists."""

import asyncio

import pytest

from baton.runtime.discovery.members import Member
from baton.testing.virtual_clock import VirtualClock, run_virtual
from services.edge.discovery import GatewayReplica, GatewayState, Location
from services.edge.polled_gateways import ListedGateways, PolledGateways


class Endpoints:
    """The endpoints of a Kubernetes Service."""

    async def follow(self, found) -> None:
        found([Member("10.0.0.1:8080", "zone-a"), Member("10.0.0.2:8080", "zone-b")])
        await asyncio.Event().wait()


def test_endpoints_of_a_service_are_asked_like_others_and_have_their_zone() -> None:
    async def ask(address: str, port: int) -> GatewayState:
        return GatewayState.READY if address == "10.0.0.1" else GatewayState.DRAINING

    async def scenario() -> list[GatewayReplica]:
        told: list[GatewayReplica] = []
        listed = [ListedGateways(Endpoints(), "here")]
        gateways = PolledGateways([], 1.0, ask=ask, listed=listed)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await gateways.follow(lambda replicas: told.__setitem__(slice(None), replicas))
        return told

    assert run_virtual(scenario(), VirtualClock()) == [
        GatewayReplica("10.0.0.1", 8080, Location("here", "zone-a"), GatewayState.READY),
        GatewayReplica("10.0.0.2", 8080, Location("here", "zone-b"), GatewayState.DRAINING),
    ]

"""Gateways named in the settings, found without a network."""

from collections.abc import Sequence

import pytest

from services.edge.discovery import GatewayReplica, GatewayState, Location
from services.edge.polled_gateways import NamedGateway, PolledGateways

READY, UNREADY, DRAINING = GatewayState.READY, GatewayState.UNREADY, GatewayState.DRAINING


class World:
    def __init__(self) -> None:
        self.names: dict[str, list[str]] = {"gw": ["10.0.0.1"]}
        # How many answers of an address do not come yet.
        self.missed: dict[str, int] = {}
        self.answers: dict[str, GatewayState | None] = {"10.0.0.1": READY, "10.0.0.2": READY}

    async def resolve(self, host: str, port: int) -> list[str]:
        if host not in self.names:
            raise OSError("no such name")
        return self.names[host]

    async def ask(self, address: str, port: int) -> GatewayState | None:
        if self.missed.get(address):
            self.missed[address] -= 1
            return None
        return self.answers[address]


@pytest.fixture
def world() -> World:
    return World()


def polled(world: World, *entries: str) -> PolledGateways:
    named = [NamedGateway.parse(entry) for entry in entries or ("gw:8080@here/a",)]
    return PolledGateways(named, 1.0, world.resolve, world.ask)


async def states(gateways: PolledGateways) -> dict[str, GatewayState]:
    return {replica.address: replica.state for replica in await gateways.poll()}


async def test_every_address_of_a_name_is_a_gateway_at_its_place(world: World) -> None:
    world.names["gw"] = ["10.0.0.1", "10.0.0.2"]
    found = await polled(world).poll()
    assert {replica.address for replica in found} == {"10.0.0.1", "10.0.0.2"}
    assert {(replica.port, replica.location) for replica in found} == {
        (8080, Location("here", "a"))
    }


async def test_what_a_gateway_says_counts_at_once(world: World) -> None:
    gateways = polled(world)
    for state in (READY, DRAINING, UNREADY, READY):
        world.answers["10.0.0.1"] = state
        assert await states(gateways) == {"10.0.0.1": state}


async def test_one_missed_answer_says_nothing_and_a_second_one_does(world: World) -> None:
    gateways = polled(world)
    await gateways.poll()
    world.answers["10.0.0.1"] = None
    assert await states(gateways) == {"10.0.0.1": READY}
    assert await states(gateways) == {"10.0.0.1": UNREADY}


async def test_a_gateway_that_never_answered_is_not_ready(world: World) -> None:
    world.answers["10.0.0.1"] = None
    assert await states(polled(world)) == {"10.0.0.1": UNREADY}


class _Enough(Exception):
    pass


async def first_found(world: World) -> list[GatewayState]:
    """The first configuration that Envoys get."""
    told: list[GatewayState] = []

    def found(replicas: Sequence[GatewayReplica]) -> None:
        told.extend(replica.state for replica in replicas)
        raise _Enough

    named = [NamedGateway.parse("gw:8080@here/a")]
    with pytest.raises(ExceptionGroup) as group:
        await PolledGateways(named, 0.0, world.resolve, world.ask).follow(found)
    assert group.value.split(_Enough)[1] is None
    return told


async def test_a_new_control_plane_sends_nothing_after_one_missed_answer(
    world: World,
) -> None:
    """Envoys still have the configuration of the last control plane."""
    world.missed["10.0.0.1"] = 1
    assert await first_found(world) == [READY]
    world.missed["10.0.0.1"] = 2
    assert await first_found(world) == [UNREADY]


async def test_a_name_that_cannot_be_resolved_keeps_its_addresses(world: World) -> None:
    gateways = polled(world)
    await gateways.poll()
    world.names.clear()
    assert await states(gateways) == {"10.0.0.1": READY}


async def test_while_no_name_is_known_nothing_is_found(world: World) -> None:
    world.names.clear()
    assert await polled(world).poll() == []


@pytest.mark.parametrize("text", ["gw", "gw:", ":80", "gw:x", "gw:70000"])
def test_an_entry_without_host_or_port_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        NamedGateway.parse(text)

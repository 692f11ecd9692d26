"""Two regions behind one Envoy: the near one while it has room and lives, then the far one."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from services.edge.discovery import Location
from tests.integration.edge.edge_load import CHAT, Load
from tests.integration.edge.edge_stack import (
    HOME,
    PATIENCE_S,
    Edge,
    SmallGateway,
    running_edge,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

# More than a request is retried, so that the near ones alone would use up all tries.
NEAR = ("near1", "near2", "near3", "near4")
FAR = ("far1", "far2")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def edge() -> AsyncIterator[Edge]:
    gateways = [SmallGateway(name) for name in NEAR]
    gateways += [SmallGateway(name, Location("there", HOME.zone)) for name in FAR]
    async with running_edge(gateways) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def http(edge: Edge) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=edge.root, timeout=PATIENCE_S) as client:
        yield client


def of_region(edge: Edge, names: tuple[str, ...]) -> list[SmallGateway]:
    return [gateway for gateway in edge.gateways if gateway.name in names]


async def held(http: httpx.AsyncClient, edge: Edge) -> httpx.Response:
    """An answer whose first piece has come, and whose next one waits."""
    for gateway in edge.gateways:
        gateway.num_pieces, gateway.go = 2, asyncio.Queue()
        gateway.go.put_nowait(None)
    request = http.build_request("POST", CHAT, content=b"{}")
    return await http.send(request, stream=True)


async def test_a_region_without_room_gets_new_requests_again_when_it_has_some(
    edge: Edge, http: httpx.AsyncClient
) -> None:
    async with Load(http) as load:
        await load.until(set(NEAR))
        for gateway in of_region(edge, NEAR):
            gateway.is_full = True
        await load.until(set(FAR))
        for gateway in of_region(edge, NEAR):
            gateway.is_full = False
        await load.until(set(NEAR))


async def test_when_no_region_has_room_the_near_one_serves(
    edge: Edge, http: httpx.AsyncClient
) -> None:
    async with Load(http) as load:
        for gateway in edge.gateways:
            gateway.is_full = True
        await edge.until_hosts(
            *((gateway, "/degraded_active_hc") for gateway in edge.gateways),
        )
        await load.until(set(NEAR))
        for gateway in edge.gateways:
            gateway.is_full = False
        await edge.until_hosts(*((gateway, "healthy") for gateway in edge.gateways))


async def test_the_loss_of_a_region_ends_its_streams_and_no_new_request_notices(
    edge: Edge, http: httpx.AsyncClient
) -> None:
    answer = await held(http, edge)
    assert answer.headers["x-gateway"] in NEAR
    for gateway in of_region(edge, NEAR):
        await gateway.kill()
    with pytest.raises(httpx.RemoteProtocolError):
        await answer.aread()
    async with Load(http) as load:
        assert await load.more(60) == set(FAR)
    for gateway in of_region(edge, NEAR):
        await gateway.start()
    async with Load(http) as load:
        await load.until(set(NEAR))

"""What happens at the edge while its parts are away: no request fails that had a living path."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from baton.runtime import peer_tls
from baton.runtime.process import Process
from baton.system.clock import SystemClock
from baton.testing.certificates import Authority
from services.edge.envoy_process import run_envoy
from tests.integration.edge_stack import HOME, PATIENCE_S, Edge, SmallGateway, running_edge

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = "/v1/chat/completions"
NUM_CLIENTS = 4


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "edge")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def edge(
    authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Edge]:
    """With TLS to clients."""
    files = authority.issue(tmp_path_factory.mktemp("tls"), "DNS:localhost,IP:127.0.0.1")
    gateways = [SmallGateway("a"), SmallGateway("b")]
    tls = {"tls_cert_file": files.cert, "tls_key_file": files.key}
    async with running_edge(gateways, **tls) as running:
        yield running


def client(edge: Edge, authority: Authority) -> httpx.AsyncClient:
    trusted = ssl.create_default_context(cadata=authority.certificate.decode())
    return httpx.AsyncClient(base_url=edge.root, verify=trusted, http2=True, timeout=PATIENCE_S)


class Load:
    """Clients that ask one request after the other, and note what came of each."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self.answers: list[str] = []
        self._is_over = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Load":
        self._tasks = [asyncio.ensure_future(self._ask()) for _ in range(NUM_CLIENTS)]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is cancelled: an HTTP/2 client may stand still after that."""
        self._is_over = True
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*self._tasks)

    async def _ask(self) -> None:
        while not self._is_over:
            answer = await self._http.post(CHAT, content=b"{}")
            named = answer.headers.get("x-gateway", "nobody")
            self.answers.append(named if answer.status_code == 200 else str(answer.status_code))

    async def more(self, count: int = 20) -> set[str]:
        """What the next answers are."""
        before = len(self.answers)
        async with asyncio.timeout(PATIENCE_S):
            while len(self.answers) < before + count:
                await asyncio.sleep(0.01)
        return set(self.answers[before:])


async def test_without_the_control_plane_everything_goes_on(
    edge: Edge, authority: Authority
) -> None:
    a, b = edge.gateways
    added = await SmallGateway("c", HOME).start()
    async with client(edge, authority) as http:
        async with Load(http) as load:
            assert await load.more() == {"a", "b"}
            await edge.stop_plane()
            assert await load.more() == {"a", "b"}
        # A gateway dies meanwhile.
        await a.kill()
        async with Load(http) as load:
            assert await load.more(60) == {"b"}
            edge.discovery.gateways = [b, added]
            await edge.start_plane()
            await edge.until_hosts((b, "healthy"), (added, "healthy"))
            assert await load.more(60) == {"b", "c"}
            await a.start()
            edge.discovery.gateways = [a, b]
            edge.discovery.tell()
            await edge.until_hosts((a, "healthy"), (b, "healthy"))
    await added.kill()


async def test_tls_offers_http_2_and_a_renewed_certificate_is_shown(
    edge: Edge, authority: Authority
) -> None:
    async with client(edge, authority) as http:
        assert (await http.post(CHAT, content=b"{}")).http_version == "HTTP/2"
    shown = await certificate(edge)
    assert edge.settings.tls_cert_file is not None
    renewed = authority.issue(edge.log.parent, "DNS:localhost,IP:127.0.0.1")
    os.replace(renewed.key, str(edge.settings.tls_key_file))
    os.replace(renewed.cert, edge.settings.tls_cert_file)

    async def is_shown() -> bool:
        return await certificate(edge) != shown

    await edge.until(is_shown)


async def certificate(edge: Edge) -> bytes:
    """What Envoy shows to a new connection."""
    unchecked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", edge.port, ssl=unchecked)
    try:
        shown: ssl.SSLObject = writer.get_extra_info("ssl_object")
        return shown.getpeercert(binary_form=True) or b""
    finally:
        writer.close()


async def test_a_killed_envoy_leaves_nothing_behind_and_comes_back_as_it_was(
    edge: Edge, authority: Authority
) -> None:
    for gateway in edge.gateways:
        gateway.num_pieces, gateway.go, gateway.num_cancelled = 2, asyncio.Queue(), 0
    async with client(edge, authority) as http:
        with pytest.raises(httpx.HTTPError):
            async with http.stream("POST", CHAT, content=b"{}") as answer:
                await edge.kill_envoy()
                await answer.aread()

    async def is_gone() -> bool:
        return sum(gateway.num_cancelled for gateway in edge.gateways) == 1

    await edge.until(is_gone)
    for gateway in edge.gateways:
        gateway.num_pieces, gateway.go = 1, None
    await edge.start_envoy()
    async with client(edge, authority) as http, Load(http) as load:
        assert await load.more() == {"a", "b"}


async def test_an_envoy_that_leaves_ends_what_it_has(edge: Edge, authority: Authority) -> None:
    await edge.kill_envoy()
    stopping = asyncio.Event()
    process = Process("envoy", SystemClock(), stopping)
    leaving = asyncio.ensure_future(run_envoy(process, edge.leaving_settings, peer_tls.Settings()))
    await edge.until(edge.serves)
    for gateway in edge.gateways:
        gateway.num_pieces, gateway.go = 2, asyncio.Queue()
    async with client(edge, authority) as http:
        async with http.stream("POST", CHAT, content=b"{}") as answer:
            stopping.set()

            await edge.until(edge.is_closed)
            assert not leaving.done()
            for gateway in edge.gateways:
                assert gateway.go is not None
                gateway.go.put_nowait(None)
                gateway.go.put_nowait(None)
            assert await answer.aread() == b"data: 0\n\ndata: 1\n\n"
    async with asyncio.timeout(PATIENCE_S):
        await leaving

"""What happens at the edge while its parts are away: no request fails that had a living path."""

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from baton.runtime import peer_tls
from baton.runtime.process import Process
from baton.system.clock import SystemClock
from baton.testing.certificates import Authority
from services.envoy.envoy_process import run_envoy
from services.gateway.http.request import Headers
from services.gateway.identity.certificates import Certificates
from tests.integration.edge.edge_load import CHAT, REFUSED, Load
from tests.integration.edge.edge_stack import (
    HANG_UP,
    HOME,
    PATIENCE_S,
    Edge,
    SmallGateway,
    running_edge,
)

# Of /proc/net/tcp, as text; 1 is a retransmission.
KEEPALIVE_TIMER = "02"


def timers_to(port: int) -> set[str]:
    """The timers that run for established connections to a port of loopback and end within 2 s."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    peers = [row for row in rows if row[2].endswith(f":{port:04X}") and row[3] == "01"]
    timers = [row[5].split(":") for row in peers]
    ticks = 2 * os.sysconf("SC_CLK_TCK")
    return {kind for kind, due in timers if int(due, 16) <= ticks}


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "edge")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def edge(
    authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Edge]:
    """With TLS to clients, who may have certificates."""
    files = authority.issue(tmp_path_factory.mktemp("tls"), "DNS:localhost,IP:127.0.0.1")
    gateways = [SmallGateway("a"), SmallGateway("b")]
    tls = {
        "tls_cert_file": files.cert,
        "tls_key_file": files.key,
        "client_ca_file": files.ca,
    }
    async with running_edge(gateways, **tls) as running:
        yield running


def client(edge: Edge, authority: Authority, http2: bool = True) -> httpx.AsyncClient:
    trusted = ssl.create_default_context(cadata=authority.certificate.decode())
    return httpx.AsyncClient(base_url=edge.root, verify=trusted, http2=http2, timeout=PATIENCE_S)


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


async def test_gateways_are_told_of_a_checked_client_certificate_and_of_nothing_else(
    edge: Edge, authority: Authority, tmp_path: Path
) -> None:
    forged = {"x-forwarded-client-cert": "URI=spiffe://example/root"}
    own = authority.issue(tmp_path / "own", "URI:spiffe://example/acme")
    stranger = Authority(tmp_path, "stranger").issue(tmp_path / "other", "URI:spiffe://example/a")
    for files, expected in ((own, "spiffe://example/acme"), (None, None)):
        trusted = ssl.create_default_context(cadata=authority.certificate.decode())
        if files is not None:
            trusted.load_cert_chain(files.cert, files.key)
        async with httpx.AsyncClient(base_url=edge.root, verify=trusted) as http:
            answer = await http.post(CHAT, content=b"{}", headers=forged, timeout=PATIENCE_S)
        serving = next(g for g in edge.gateways if g.name == answer.headers["x-gateway"])
        value = serving.requests[-1].get("x-forwarded-client-cert")
        headers = Headers([(b"x-forwarded-client-cert", (value or "").encode())])
        found = Certificates(["127.0.0.1"], "uri").identity({"client": ("127.0.0.1", 1)}, headers)
        assert (found.name if found else None) == (f"cert:{expected}" if expected else None)
        assert "root" not in (value or "")
    trusted = ssl.create_default_context(cadata=authority.certificate.decode())
    trusted.load_cert_chain(stranger.cert, stranger.key)
    async with httpx.AsyncClient(base_url=edge.root, verify=trusted) as http:
        # TLS 1.3 tells the refusal after the handshake, so that it can reach a read unwrapped.
        with pytest.raises((httpx.HTTPError, ssl.SSLError)):
            await http.post(CHAT, content=b"{}", timeout=PATIENCE_S)


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


async def test_a_killed_envoy_costs_only_its_own_clients(edge: Edge, authority: Authority) -> None:
    await edge.until(edge.serves)
    other = edge.twin()
    await other.start_plane()
    await other.start_envoy()
    for gateway in edge.gateways:
        gateway.num_pieces, gateway.go = 2, asyncio.Queue()
    # HTTP/1.1: httpx may stand still when an HTTP/2 connection breaks under several requests.
    async with client(edge, authority, False) as struck, client(other, authority, False) as spared:
        async with Load(struck, may_fail=True) as hit, Load(spared) as going_on:
            await hit.until({"a", "b"})
            async with spared.stream("POST", CHAT, content=b"{}") as whole:
                with pytest.raises(httpx.HTTPError):
                    async with struck.stream("POST", CHAT, content=b"{}") as cut:
                        await edge.kill_envoy()
                        await cut.aread()
                await hit.until({REFUSED})
                assert await going_on.more(40) == {"a", "b"}
                await edge.start_envoy()
                await hit.until({"a", "b"})
                release(edge)
                assert await whole.aread() == b"data: 0\n\ndata: 1\n\n"
    await other.kill_envoy()
    await other.stop_plane()
    for gateway in edge.gateways:
        gateway.num_pieces, gateway.go = 1, None


def release(edge: Edge) -> None:
    """More than every open stream needs."""
    for gateway in edge.gateways:
        for _ in range(20):
            assert gateway.go is not None
            gateway.go.put_nowait(None)


async def test_a_killed_gateway_costs_only_what_it_had(edge: Edge, authority: Authority) -> None:
    a, b = edge.gateways
    for gateway in edge.gateways:
        gateway.num_pieces, gateway.go = 2, asyncio.Queue()
    async with client(edge, authority) as http, contextlib.AsyncExitStack() as streams:
        opened: list[httpx.Response] = []
        while {one.headers["x-gateway"] for one in opened} != {"a", "b"}:
            stream = http.stream("POST", CHAT, content=b"{}")
            opened.append(await streams.enter_async_context(stream))
        await a.kill()
        release(edge)
        for answer in opened:
            if answer.headers["x-gateway"] == "b":
                assert await answer.aread() == b"data: 0\n\ndata: 1\n\n"
            else:
                with pytest.raises(httpx.RemoteProtocolError):
                    await answer.aread()
        b.num_pieces, b.go, b.num_requests = 1, None, 0
        # Envoy has been told nothing: it finds out with the first request that it sends there.
        answers = [await http.post(CHAT, content=b"{}") for _ in range(30)]
    assert {answer.headers["x-gateway"] for answer in answers} == {"b"}
    assert b.num_requests == len(answers), "what is sent again has reached nobody before"
    stats = await edge.stats("cluster.gateways.upstream_")
    assert stats["cluster.gateways.upstream_cx_connect_fail"] > 0
    assert stats["cluster.gateways.upstream_rq_retry_success"] > 0
    a.num_pieces, a.go = 1, None
    await a.start()


async def test_what_keeps_nothing_is_tried_elsewhere_when_its_gateway_is_lost() -> None:
    lost, well = SmallGateway("lost"), SmallGateway("well")
    lost.status = HANG_UP
    # Fewer than the failures that eject a gateway, but for the last one.
    cases = [
        (CHAT, {}, 100_000, True),
        (CHAT, {"idempotency-key": "one"}, 10, False),
        ("/v1/responses", {}, 10, False),
        ("/v1/batches", {}, 10, False),
        (CHAT, {}, 1_000_000, False),
    ]
    async with running_edge([lost, well]) as edge:
        async with httpx.AsyncClient(base_url=edge.root, timeout=PATIENCE_S) as http:
            for path, headers, num_bytes, is_repeated in cases:
                before, status = lost.num_requests, 200
                while lost.num_requests == before:
                    assert status == 200
                    answer = await http.post(path, content=bytes(num_bytes), headers=headers)
                    status = answer.status_code
                assert lost.num_requests == before + 1, lost.requests
                assert (status == 200) == is_repeated, (path, headers, num_bytes)


async def test_a_silent_gateway_is_asked_for_a_sign_of_life(
    edge: Edge, authority: Authority
) -> None:
    """The kernel's timer of each of Envoy's connections to it is that of a keepalive, due soon."""
    a, _ = edge.gateways
    async with client(edge, authority) as http:
        async with Load(http) as load:
            await load.more()

            async def is_asked() -> bool:
                return KEEPALIVE_TIMER in timers_to(a.port)

            await edge.until(is_asked)


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

"""What protects the edge from clients and from gateways, with limits that are soon reached."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from baton.localstack.ports import LOOPBACK, free_ports
from baton.runtime.http_call import NoAnswer, call
from baton.testing.certificates import Authority
from services.edge.http_manager import MAX_STREAMS, Tracing
from tests.integration.edge.edge_load import CHAT, Load
from tests.integration.edge.edge_stack import (
    HANG_UP,
    PATIENCE_S,
    Edge,
    SmallGateway,
    running_edge,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

MAX_CONNECTIONS = 6
_SETTING_MAX_STREAMS = 3


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def edge(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Edge]:
    """With TLS, and impatient."""
    authority = Authority(tmp_path_factory.mktemp("authority"), "edge")
    files = authority.issue(tmp_path_factory.mktemp("tls"), "DNS:localhost,IP:127.0.0.1")
    (metrics,) = free_ports(1)
    envoy = {
        "max_connections": MAX_CONNECTIONS,
        "metrics_listen": f"{LOOPBACK}:{metrics}",
    }
    settings = {
        "tls_cert_file": files.cert,
        "tls_key_file": files.key,
        # Many times what a handshake or a head takes, on a busy machine, too.
        "head_timeout_s": 2.0,
        "request_timeout_s": 2.5,
    }
    async with running_edge([SmallGateway("a")], None, envoy, **settings) as running:
        yield running


class Connection:
    """A client's, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, edge: Edge, protocol: str = "http/1.1") -> "Connection":
        """Again where this side, on a busy machine, was too slow with its handshake."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with contextlib.suppress(ConnectionError, ssl.SSLError):
                    return await cls.open_at_once(edge, protocol)

    @classmethod
    async def open_at_once(cls, edge: Edge, protocol: str = "http/1.1") -> "Connection":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols([protocol])
        async with asyncio.timeout(PATIENCE_S):
            return cls(*await asyncio.open_connection(LOOPBACK, edge.port, ssl=context))

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def until_closed(self) -> bytes:
        """All that is said until then."""
        said = b""
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(PATIENCE_S):
                while part := await self.reader.read(65536):
                    said += part
        return said

    async def answer_while_dripping(self, drip: bytes) -> bytes:
        """All that is said until the end, while `drip` is sent again and again."""
        answer = asyncio.ensure_future(self.until_closed())
        while not answer.done():
            self.send(drip)
            await asyncio.wait({answer}, timeout=0.05)
        return await answer

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await self._writer.wait_closed()


@contextlib.asynccontextmanager
async def connected(edge: Edge, protocol: str = "http/1.1") -> AsyncIterator[Connection]:
    one = await Connection.open(edge, protocol)
    try:
        yield one
    finally:
        await one.close()


HEAD = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\n".encode()


@pytest.mark.parametrize(
    ("begun", "drip"),
    [(HEAD, b"x-a: b\r\n"), (HEAD + b"content-length: 100000\r\n\r\n", b"a")],
    ids=["head", "body"],
)
async def test_a_request_that_only_drips_is_given_up_and_an_answer_that_does_is_not(
    edge: Edge, begun: bytes, drip: bytes
) -> None:
    (gateway,) = edge.gateways
    gateway.num_pieces, gateway.go = 2, asyncio.Queue()
    async with connected(edge) as patient, connected(edge) as dripping:
        patient.send(HEAD + b"content-length: 0\r\nconnection: close\r\n\r\n")
        async with asyncio.timeout(PATIENCE_S):
            await patient.reader.readuntil(b"\r\n\r\n")
        before = gateway.num_requests
        dripping.send(begun)
        head, _, body = (await dripping.answer_while_dripping(drip)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 ")
        assert json.loads(body)["error"]["code"] == "request_timeout"
        assert gateway.num_requests == before
        # This one has been open for longer than any of them.
        for _ in range(gateway.num_pieces):
            gateway.go.put_nowait(None)
        assert b"data: 1\n\n" in await patient.until_closed()
    gateway.num_pieces, gateway.go = 1, None


async def test_a_handshake_that_never_comes_is_not_waited_for(edge: Edge) -> None:
    async def num_given_up() -> int:
        return sum((await edge.stats("transport_socket_connect_timeout")).values())

    before = await num_given_up()
    reader, writer = await asyncio.open_connection(LOOPBACK, edge.port)
    async with asyncio.timeout(PATIENCE_S):
        assert await reader.read() == b""
    writer.close()

    async def is_counted() -> bool:
        return await num_given_up() == before + 1

    await edge.until(is_counted)


async def test_an_http_2_client_is_told_how_many_streams_it_may_have(edge: Edge) -> None:
    async with connected(edge, "h2") as http2:
        http2.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000"))
        async with asyncio.timeout(PATIENCE_S):
            frame = await http2.reader.readexactly(9)
            settings = await http2.reader.readexactly(int.from_bytes(frame[:3]))
    told = {
        int.from_bytes(settings[at : at + 2]): int.from_bytes(settings[at + 2 : at + 6])
        for at in range(0, len(settings), 6)
    }
    assert told[_SETTING_MAX_STREAMS] == MAX_STREAMS


async def test_connections_beyond_the_limit_are_closed_and_the_others_go_on(edge: Edge) -> None:
    async def is_empty() -> bool:
        return (await edge.stats("downstream_cx_active"))["http.edge.downstream_cx_active"] == 0

    await edge.until(is_empty)
    async with contextlib.AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(connected(edge)) for _ in range(MAX_CONNECTIONS)]
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await Connection.open_at_once(edge)
        assert sum((await edge.stats("downstream_global_cx_overflow")).values()) == 1
        host, _, port = edge.envoy_settings.metrics_listen.rpartition(":")
        assert (await call((host, int(port)), "/ready", timeout_s=PATIENCE_S))[0] == 200
        for one in opened:
            one.send(HEAD + b"content-length: 0\r\nconnection: close\r\n\r\n")
            assert (await one.until_closed()).startswith(b"HTTP/1.1 200 ")
    await edge.until(edge.serves)


async def test_an_envoy_short_of_memory_takes_nothing_new_and_says_so() -> None:
    (metrics,) = free_ports(1)
    envoy = {"max_heap_bytes": 1, "metrics_listen": f"{LOOPBACK}:{metrics}"}
    edge = Edge([await SmallGateway("a").start()], envoy)
    await edge.start_plane()
    await edge.launch_envoy()
    try:

        async def is_full() -> bool:
            try:
                stats = await edge.stats("overload_actions")
            except NoAnswer:
                return False
            active = [value for name, value in stats.items() if name.endswith(".active")]
            return bool(active) and all(active)

        await edge.until(is_full)
        status, body = await call((LOOPBACK, metrics), "/stats/prometheus", timeout_s=PATIENCE_S)
        assert status == 200
        assert b"envoy_overload_envoy_overload_actions_stop_accepting_requests_active" in body
    finally:
        await edge.kill_envoy()
        await edge.stop_plane()
        await edge.gateways[0].kill()


class Silent:
    """A collector that accepts connections, reads, and never says a word."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._open: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.append(writer)
        with contextlib.suppress(ConnectionError):
            while part := await reader.read(65536):
                self.num_bytes += len(part)

    def hang_up(self) -> None:
        for writer in self._open:
            writer.transport.abort()


async def test_a_collector_that_is_silent_and_then_dead_delays_nobody() -> None:
    collector = Silent()
    server = await asyncio.start_server(collector.serve, LOOPBACK, 0)
    tracing = Tracing(f"{LOOPBACK}:{server.sockets[0].getsockname()[1]}", 100)
    async with running_edge([SmallGateway("a")], tracing) as edge:
        async with httpx.AsyncClient(base_url=edge.root, timeout=PATIENCE_S) as http:

            async def waits_for_an_answer() -> bool:
                stats = await edge.stats("cluster.spans.upstream_rq_active")
                return stats["cluster.spans.upstream_rq_active"] > 0

            async def cannot_connect() -> bool:
                stats = await edge.stats("cluster.spans.upstream_cx_connect_fail")
                return stats["cluster.spans.upstream_cx_connect_fail"] > 0

            async with Load(http) as load:
                await edge.until(waits_for_an_answer)
                assert await load.more() == {"a"}
                assert collector.num_bytes > 0
                server.close()
                collector.hang_up()
                await edge.until(cannot_connect)
                assert await load.more() == {"a"}


async def test_who_only_fails_is_left_alone_and_who_refuses_is_not() -> None:
    statuses = {
        "hangs-up": HANG_UP,
        "fails": 500,
        "full": 429,
        "busy": 503,
        "late": 504,
        "well": 200,
    }
    gateways = [SmallGateway(name) for name in statuses]
    for gateway in gateways:
        gateway.status = statuses[gateway.name]
    async with running_edge(gateways) as edge:
        async with httpx.AsyncClient(base_url=edge.root, timeout=PATIENCE_S) as http:

            async def are_left_alone() -> bool:
                before = [gateway.num_requests for gateway in gateways]
                flagged = await edge.hosts()
                for _ in range(20):
                    await http.post(CHAT, content=b"{}")
                if list(flagged.values()).count("healthy") > 4 or flagged != await edge.hosts():
                    return False
                assert {gateway.name: flagged[gateway.port] for gateway in gateways} == {
                    name: "/failed_outlier_check" if name in ("hangs-up", "fails") else "healthy"
                    for name in statuses
                }
                return [gateway.num_requests for gateway in gateways[:2]] == before[:2]

            await edge.until(are_left_alone)

"""TLS between a real Envoy and the gateway's own HTTP server: who may call, who is a gateway, and
certificates that are renewed."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from baton.localstack.ports import LOOPBACK
from baton.runtime import environment, peer_tls
from baton.runtime.http_call import NoAnswer, TlsServer, call
from baton.runtime.listening_socket import listening_socket
from baton.testing.certificates import Authority, MemberFiles
from services.edge.discovery import GatewayReplica, GatewayState
from services.edge.polled_gateways import ask
from services.gateway.http.callers import HttpCallers
from services.gateway.http.shared_listener import ConnectionCounts, ProcessPlace
from services.gateway.server import HttpServer
from tests.integration.edge.edge_load import CHAT
from tests.integration.edge.edge_stack import HOME, PATIENCE_S, Edge

NAME = "gateway.baton"


class SmallHttpServer:
    """The gateway's server around an app that says its name."""

    def __init__(self, name: str, files: MemberFiles, place: ProcessPlace | None = None) -> None:
        self.name = name
        self.num_answered = 0
        callers = HttpCallers(files.tls(), ["envoy"])
        self._server = HttpServer(self, drain_cap_s=1, stall_s=60, place=place, callers=callers)
        self._socket = listening_socket(f"{LOOPBACK}:0", send_buffer_bytes=16384)
        self.port: int = self._socket.getsockname()[1]
        self._serving = asyncio.ensure_future(self._server.serve([self._socket]))

    @property
    def replica(self) -> GatewayReplica:
        return GatewayReplica(LOOPBACK, self.port, HOME, GatewayState.READY)

    def hang_up(self) -> None:
        """Close the connections of Envoys, which dial again."""
        for connection in list(self._server.server_state.connections):
            connection.transport.close()  # type: ignore[union-attr]

    async def stop(self) -> None:
        self._server.drain()
        await self._serving

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == CHAT:
            self.num_answered += 1
        headers = [(b"x-gateway", self.name.encode()), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def running(
    monkeypatch: pytest.MonkeyPatch, files: MemberFiles, gateways: list[SmallHttpServer]
) -> AsyncIterator[Edge]:
    """Envoy and control plane with the certificate of these files."""
    for name, value in files.environment().items():
        monkeypatch.setenv(name, value)
    peer_tls.of_process.cache_clear()
    edge = Edge([], gateway_name=NAME)
    edge.peer = environment.load(peer_tls.Settings, peer_tls.PREFIX)
    edge.discovery.gateways = gateways  # type: ignore[assignment]
    await edge.start_plane()
    try:
        await edge.start_envoy()
        yield edge
    finally:
        await edge.kill_envoy()
        await edge.stop_plane()
        for gateway in gateways:
            await gateway.stop()
        peer_tls.of_process.cache_clear()


async def asked(edge: Edge) -> httpx.Response:
    async with httpx.AsyncClient(timeout=PATIENCE_S) as http:
        return await http.post(f"{edge.root}{CHAT}", content=b"{}")


def members(authority: Authority, folder: Path, *services: str) -> list[MemberFiles]:
    return [
        authority.issue(folder / service, f"DNS:baton,DNS:{service}.baton") for service in services
    ]


async def test_envoy_takes_gateways_for_gateways_alone_and_renewed_certificates_as_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Authority(tmp_path, "ours")
    envoy, gateway, worker = members(ours, tmp_path, "envoy", "gateway", "worker")
    gateways = [SmallHttpServer("stolen", worker), SmallHttpServer("right", gateway)]
    async with running(monkeypatch, envoy, gateways) as edge:
        stolen, right = gateways

        async def is_settled() -> bool:
            hosts = await edge.hosts()
            return hosts.get(right.port) == "healthy" and hosts.get(stolen.port) != "healthy"

        await edge.until(is_settled)
        answers = [await asked(edge) for _ in range(8)]
        assert [answer.headers.get("x-gateway") for answer in answers] == ["right"] * 8
        assert stolen.num_answered == 0
        # Another authority altogether, for both ends.
        moved = Authority(tmp_path, "next")
        for files, name in ((gateway, "gateway"), (envoy, "envoy")):
            fresh = moved.issue(tmp_path / f"{name}-next", f"DNS:baton,DNS:{name}.baton")
            for old, new in (
                (files.key, fresh.key),
                (files.ca, fresh.ca),
                (files.cert, fresh.cert),
            ):
                os.replace(new, old)
        # Connections that are open go on: new ones show what is new.
        tls = TlsServer(envoy.tls(), NAME)
        assert await ask(LOOPBACK, right.port, tls) is GatewayState.READY

        async def handshakes() -> int:
            (number,) = (await edge.stats("cluster.gateways.ssl.handshake$")).values()
            return number

        before = await handshakes()
        right.hang_up()

        async def is_connected_again() -> bool:
            return await handshakes() > before and (await asked(edge)).status_code == 200

        await edge.until(is_connected_again)


@pytest.mark.parametrize("is_alone", [True, False], ids=["one process", "one of several"])
async def test_a_gateway_is_called_by_envoy_alone(tmp_path: Path, is_alone: bool) -> None:
    ours = Authority(tmp_path, "ours")
    envoy, gateway, tokenizer = members(ours, tmp_path, "envoy", "gateway", "tokenizer")
    stranger = Authority(tmp_path, "theirs").issue(tmp_path / "stranger", "DNS:baton")
    shared = ours.issue(tmp_path / "shared", "DNS:baton")
    place = None if is_alone else ProcessPlace(0, ConnectionCounts.create(2))
    server = SmallHttpServer("a", gateway, place)
    try:
        for files, expected in ((envoy, 200), (shared, 200), (tokenizer, 403), (None, 403)):
            async with client(ours, files) as http:
                root = f"https://localhost:{server.port}"
                answer = await http.post(root + CHAT, content=b"{}", extensions=SNI)
                assert answer.status_code == expected, answer.text
                if expected == 403:
                    assert answer.json()["error"]["code"] == "caller_refused"
                # A probe of Kubernetes has no certificate.
                assert (await http.get(f"{root}/readyz", extensions=SNI)).status_code == 200
        assert server.num_answered == 2
        async with client(ours, stranger) as http:
            with pytest.raises((httpx.HTTPError, ssl.SSLError)):
                await http.get(f"https://localhost:{server.port}/readyz", extensions=SNI)
        with pytest.raises(NoAnswer):
            await call((LOOPBACK, server.port), "/readyz", timeout_s=PATIENCE_S)
        # A caller finds out that this is no gateway.
        with pytest.raises(NoAnswer, match="Hostname mismatch"):
            tls = TlsServer(envoy.tls(), "quota.baton")
            await call((LOOPBACK, server.port), "/readyz", timeout_s=PATIENCE_S, tls=tls)
    finally:
        await server.stop()


SNI = {"sni_hostname": NAME}


def client(authority: Authority, files: MemberFiles | None) -> httpx.AsyncClient:
    context = ssl.create_default_context(cadata=authority.certificate.decode())
    if files is not None:
        context.load_cert_chain(files.cert, files.key)
    return httpx.AsyncClient(verify=context, timeout=PATIENCE_S)

"""A real Envoy with the real control plane, in front of small gateways that do as they are told."""

import asyncio
import contextlib
import json
import os
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from baton.localstack.ports import LOOPBACK, free_ports
from baton.runtime import peer_tls
from baton.runtime.http_call import call
from baton.runtime.otlp.span_headers import envoy_variables
from baton.runtime.process import Process
from baton.system.clock import SystemClock
from services.edge.__main__ import serve
from services.edge.discovery import Found, GatewayReplica, GatewayState, Location
from services.edge.http_manager import Tracing
from services.edge.settings import Settings
from services.envoy.envoy_process import command
from services.envoy.settings import Settings as EnvoySettings

PATIENCE_S = 60.0
HANG_UP = 0
# A header of requests whose answers are not held back.
HURRIED = "x-hurried"
HOME = Location("here", "a")


class SmallGateway:
    """A gateway that speaks enough HTTP/1.1.

    It has an attribute for each thing that tests set, count or read. `go` lets the next piece of
    an open stream out, unless the request is HURRIED.
    """

    def __init__(self, name: str, place: Location = HOME) -> None:
        self.name = name
        self.place = place
        self.state = GatewayState.READY
        self.is_full = False
        # What every request to the API is answered with; 200 = a stream, HANG_UP = a reset.
        self.status = 200
        self.num_pieces = 1
        self.requests: list[dict[str, str]] = []
        self.num_requests = 0
        self.num_cancelled = 0
        self.go: asyncio.Queue[None] | None = None
        self.port = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> "SmallGateway":
        self._server = await asyncio.start_server(self._serve, LOOPBACK, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def kill(self) -> None:
        """As kill -9 does: everything is reset, the port closed."""
        assert self._server is not None
        self._server.close()
        for writer in list(self._open):
            writer.transport.abort()
        await self._server.wait_closed()

    @property
    def replica(self) -> GatewayReplica:
        return GatewayReplica(LOOPBACK, self.port, self.place, self.state)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while head := await self._head(reader):
                await self._answer(head, reader, writer)
                if head.get("connection") == "close":
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    async def _head(self, reader: asyncio.StreamReader) -> dict[str, str]:
        try:
            text = (await reader.readuntil(b"\r\n\r\n")).decode()
        except asyncio.IncompleteReadError:
            return {}
        first, *lines = text.strip().split("\r\n")
        headers = {name: value.strip() for name, _, value in (x.partition(":") for x in lines)}
        headers[":path"] = first.split(" ")[1]
        await reader.readexactly(int(headers.get("content-length", 0)))
        return headers

    async def _answer(
        self, head: dict[str, str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if head[":path"] == "/readyz":
            ready = self.state is GatewayState.READY
            reasons = ["draining"] if self.state is GatewayState.DRAINING else []
            body = json.dumps({"reasons": reasons}).encode()
            full = "x-envoy-degraded: 1\r\n" if self.is_full else ""
            self._write_head(writer, 200 if ready else 503, len(body), full)
            writer.write(body)
            await writer.drain()
            return
        self.requests = [*self.requests[-9:], head]
        self.num_requests += 1
        if self.status == HANG_UP:
            writer.transport.abort()
            raise ConnectionResetError
        if self.status != 200:
            self._write_head(writer, self.status, 0)
            await writer.drain()
            return
        await self._stream(reader, writer, None if HURRIED in head else self.go)

    def _write_head(
        self, writer: asyncio.StreamWriter, status: int, length: int, more: str = ""
    ) -> None:
        head = (
            f"HTTP/1.1 {status} x\r\nx-gateway: {self.name}\r\ncontent-length: {length}\r\n{more}"
        )
        writer.write(f"{head}\r\n".encode())

    async def _stream(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        go: asyncio.Queue[None] | None,
    ) -> None:
        writer.write(
            f"HTTP/1.1 200 OK\r\nx-gateway: {self.name}\r\ncontent-type: text/event-stream\r\n"
            f"x-request-id: req_{self.name}_{self.num_requests}\r\n"
            "transfer-encoding: chunked\r\n\r\n".encode()
        )
        left = asyncio.ensure_future(reader.read(1))
        for number in range(self.num_pieces):
            if go is not None:
                may_go = asyncio.ensure_future(go.get())
                await asyncio.wait({may_go, left}, return_when=asyncio.FIRST_COMPLETED)
                if not may_go.done():
                    may_go.cancel()
                    self.num_cancelled += 1
                    raise ConnectionResetError
            piece = f"data: {number}\n\n".encode()
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
        left.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await left
        writer.write(b"0\r\n\r\n")
        await writer.drain()


class ToldGateways:
    """A Discovery that is told."""

    def __init__(self, gateways: Sequence[SmallGateway]) -> None:
        self.gateways = list(gateways)
        self._changed = asyncio.Event()

    def tell(self) -> None:
        self._changed.set()

    async def follow(self, found: Found) -> None:
        while True:
            self._changed.clear()
            found([gateway.replica for gateway in self.gateways])
            await self._changed.wait()


class Edge:
    """Envoy and its control plane; either can be stopped and started again.

    It has the settings of both, their addresses, and the two that run now.
    """

    def __init__(
        self,
        gateways: Sequence[SmallGateway],
        envoy: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        ads, http, admin = free_ports(3)
        self.gateways = list(gateways)
        self.discovery = ToldGateways(self.gateways)
        self.settings = Settings(
            listen=f"{LOOPBACK}:{ads}",
            http_listen=f"{LOOPBACK}:{http}",
            **{"gateways": ("unused:1",), **settings},
        )
        self.envoy_settings = EnvoySettings(
            control_plane=self.settings.listen,
            node_id="envoy-1",
            region=HOME.region,
            zone=HOME.zone,
            admin_listen=f"{LOOPBACK}:{admin}",
            **{"concurrency": 1, **(envoy or {})},
        )
        self.tracing: Tracing | None = None
        # Envoy's own certificate, if it has one.
        self.peer = peer_tls.Settings()
        # Envoy's environment, of which it sees the values of headers.
        self.told: Mapping[str, str] = {}
        self.port = http
        scheme = "https" if self.settings.tls_cert_file else "http"
        self.root = f"{scheme}://{LOOPBACK}:{http}"
        self.admin = (LOOPBACK, admin)
        self.log = Path(tempfile.mkdtemp()) / "envoy.log"
        self._stopping = asyncio.Event()
        self._plane: asyncio.Task[None] | None = None
        self.envoy: asyncio.subprocess.Process | None = None

    def twin(self) -> "Edge":
        """Another Envoy and control plane for the same gateways."""
        tls = ("tls_cert_file", "tls_key_file")
        return Edge(self.gateways, **{name: getattr(self.settings, name) for name in tls})

    async def start_plane(self) -> None:
        self._stopping = asyncio.Event()
        bound = asyncio.get_running_loop().create_future()
        process = Process("edge", SystemClock(), self._stopping)
        self._plane = asyncio.ensure_future(
            serve(process, self.settings, self.discovery, self.tracing, bound.set_result)
        )
        await bound

    async def stop_plane(self) -> None:
        assert self._plane is not None
        self._stopping.set()
        await self._plane

    async def start_envoy(self) -> None:
        await self.launch_envoy()
        await self.until(self.serves)

    async def launch_envoy(self) -> None:
        with self.log.open("ab") as log:
            self.envoy = await asyncio.create_subprocess_exec(
                *command(self.envoy_settings, self.peer),
                env={**os.environ, **envoy_variables(self.told)},
                stdout=log,
                stderr=log,
            )

    async def kill_envoy(self) -> None:
        if self.envoy is not None:
            if self.envoy.returncode is None:
                self.envoy.kill()
            await self.envoy.wait()

    async def serves(self) -> bool:
        """Whether a request finds its way to a gateway."""
        try:
            async with httpx.AsyncClient(verify=False, timeout=PATIENCE_S) as http:
                asked = await http.get(f"{self.root}/healthz", headers={HURRIED: "1"})
                return asked.status_code == 200
        except httpx.HTTPError:
            return False

    async def is_closed(self) -> bool:
        """Whether Envoy takes no new connection. Asks no gateway: they may hold their answers."""
        try:
            _, writer = await asyncio.open_connection(LOOPBACK, self.port)
        except ConnectionRefusedError:
            return True
        writer.close()
        return False

    @property
    def leaving_settings(self) -> EnvoySettings:
        """Of an Envoy that leaves without notice, once it is empty."""
        return replace(self.envoy_settings, unready_s=0.0, drain_s=PATIENCE_S)

    async def stats(self, filter: str) -> dict[str, int]:
        """Envoy's counters and gauges whose name contains `filter`."""
        path = f"/stats?filter={filter}"
        _, body = await call(self.admin, path, timeout_s=PATIENCE_S)
        # The admin port answers in chunks: keep the lines that are statistics.
        rows = (line.split(": ") for line in body.decode().splitlines() if ": " in line)
        return {name: int(value) for name, value in rows if value.strip().isdigit()}

    async def hosts(self) -> dict[int, str]:
        """Port -> what Envoy holds against it ("healthy" = nothing)."""
        _, body = await call(self.admin, "/clusters", timeout_s=PATIENCE_S)
        flags = {}
        for line in body.decode().splitlines():
            cluster, _, rest = line.partition("::")
            address, _, rest = rest.partition("::")
            if cluster == "gateways" and rest.startswith("health_flags::"):
                flags[int(address.rpartition(":")[2])] = rest.removeprefix("health_flags::").strip()
        return flags

    async def until_hosts(self, *wanted: tuple[SmallGateway, str]) -> None:
        """Until Envoy holds exactly this against these gateways."""
        expected = {gateway.port: flags for gateway, flags in wanted}

        async def is_so() -> bool:
            return await self.hosts() == expected

        await self.until(is_so)

    async def until(self, condition: Any) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not await condition():
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(self.log.read_text()[-3000:]) from None


@contextlib.asynccontextmanager
async def running_edge(
    gateways: Sequence[SmallGateway],
    tracing: Tracing | None = None,
    envoy: Mapping[str, Any] | None = None,
    told: Mapping[str, str] | None = None,
    **settings: Any,
) -> AsyncIterator[Edge]:
    """Everything started, and every gateway known to Envoy as it is."""
    for gateway in gateways:
        await gateway.start()
    edge = Edge(gateways, envoy, **settings)
    edge.tracing = tracing
    edge.told = told or {}
    await edge.start_plane()
    try:
        await edge.start_envoy()
        yield edge
    finally:
        await edge.kill_envoy()
        await edge.stop_plane()
        for gateway in gateways:
            await gateway.kill()


async def send_two_lengths(port: int, order: Sequence[str], cut: str) -> bytes:
    """Everything that the server says, until it closes, to a request with both lengths and another
    one behind it; sent as a `whole`, or in `lines`, each in a packet of its own."""
    body = b"4\r\nabcd\r\n0\r\n\r\n"
    lengths = {
        "length": b"content-length: %d\r\n" % len(body),
        "chunked": b"transfer-encoding: chunked\r\n",
    }
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
    head += b"".join(lengths[name] for name in order) + b"\r\n"
    sent = head + body + b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    try:
        for part in sent.splitlines(keepends=True) if cut == "lines" else [sent]:
            writer.write(part)
            await writer.drain()
        async with asyncio.timeout(PATIENCE_S):
            return await _until_closed(reader)
    finally:
        writer.close()


async def _until_closed(reader: asyncio.StreamReader) -> bytes:
    said = b""
    # What the server leaves unread makes its close a reset.
    with contextlib.suppress(ConnectionError):
        while part := await reader.read(65536):
            said += part
    return said

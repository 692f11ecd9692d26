"""Each fault of the proxy does what it says to real sockets, and one that met nothing is found."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from baton.testing.fault_proxy import FaultProxy, OneUpstream
from baton.testing.faults import FaultDidNotHappen
from baton.testing.ready_upstreams import ReadyUpstreams

TIMEOUT_S = 60.0


class EchoServer:
    """Sends back what it reads, and remembers how each connection ended."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.endings: list[str] = []
        self.ended = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(1 << 16):
                    connection.sendall(data)
                self.endings.append("end")
            except OSError:
                self.endings.append("reset")
        self.ended.set()


@pytest.fixture
def server() -> Iterator[EchoServer]:
    running = EchoServer()
    yield running
    running.listener.close()


@pytest.fixture
def proxy(server: EchoServer) -> Iterator[FaultProxy]:
    with FaultProxy(OneUpstream("127.0.0.1", server.port), seed=1) as running:
        yield running


@contextmanager
def connected(proxy: FaultProxy) -> Iterator[socket.socket]:
    with socket.create_connection((proxy.host, proxy.port), timeout=TIMEOUT_S) as connection:
        yield connection


def echo(connection: socket.socket, data: bytes) -> bytes:
    connection.sendall(data)
    return read(connection, len(data))


def read(connection: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size:
        piece = connection.recv(size - len(got))
        assert piece, "the stream ended"
        got += piece
    return got


def until_met(proxy: FaultProxy, kind: str) -> None:
    """Until a fault of this kind has met bytes."""
    deadline = time.monotonic() + TIMEOUT_S
    while not proxy.counts[f"to_server.{kind}"]:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def is_silent(connection: socket.socket, seconds: float = 0.3) -> bool:
    connection.settimeout(seconds)
    try:
        connection.recv(1)
        return False
    except TimeoutError:
        return True
    finally:
        connection.settimeout(TIMEOUT_S)


def test_without_faults_every_byte_passes_and_so_does_the_end(
    proxy: FaultProxy, server: EchoServer
) -> None:
    data = bytes(range(256)) * 4000
    with connected(proxy) as connection:
        sender = threading.Thread(target=connection.sendall, args=(data,))
        sender.start()
        assert read(connection, len(data)) == data
        sender.join()
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
    assert server.ended.wait(TIMEOUT_S)
    assert server.endings == ["end"]
    assert proxy.counts["to_server.bytes"] == proxy.counts["to_client.bytes"] == len(data)
    proxy.verify()


def test_delayed_bytes_come_late_and_in_order(proxy: FaultProxy) -> None:
    with connected(proxy) as connection, proxy.fault("to_client", delay_s=0.2):
        started = time.monotonic()
        connection.sendall(b"one")
        connection.sendall(b"two")
        assert read(connection, 6) == b"onetwo"
        assert time.monotonic() - started >= 0.2


def test_held_bytes_arrive_when_the_fault_ends(proxy: FaultProxy) -> None:
    with connected(proxy) as connection:
        assert echo(connection, b"before") == b"before"
        with proxy.fault("to_server", hold=True):
            connection.sendall(b"held")
            until_met(proxy, "hold")
            assert is_silent(connection)
        assert read(connection, 4) == b"held"


def test_dropped_bytes_are_gone_and_their_connection_stays_half_open(
    proxy: FaultProxy, server: EchoServer
) -> None:
    with connected(proxy) as connection:
        assert echo(connection, b"before") == b"before"
        with proxy.fault(drop=True):
            connection.sendall(b"lost")
            until_met(proxy, "drop")
            assert is_silent(connection)
        connection.sendall(b"still lost")
        assert is_silent(connection)
        with connected(proxy) as fresh:
            assert echo(fresh, b"fresh") == b"fresh"
    assert server.ended.wait(TIMEOUT_S)
    # The end of the fresh connection came through; that of the half-open one never does.
    assert server.endings == ["end"]
    deadline = time.monotonic() + TIMEOUT_S
    while proxy.num_open > 1:
        assert time.monotonic() < deadline
    assert proxy.num_open == 1


def test_a_throttled_direction_is_slow(proxy: FaultProxy) -> None:
    with connected(proxy) as connection, proxy.fault("to_client", bytes_per_s=10_000):
        started = time.monotonic()
        assert echo(connection, b"x" * 2_000) == b"x" * 2_000
        assert time.monotonic() - started >= 0.2


def test_one_bit_of_the_named_byte_is_flipped(proxy: FaultProxy) -> None:
    with connected(proxy) as connection:
        echo(connection, b"before")
        with proxy.fault("to_server", corrupt_offset=3):
            got = echo(connection, bytes(8)) + echo(connection, bytes(8))
    assert [index for index, byte in enumerate(got) if byte] == [3]
    assert got[3].bit_count() == 1
    assert proxy.counts["to_server.corrupt"] == 1


def test_small_chunks_are_left_alone_when_told_so(proxy: FaultProxy) -> None:
    with connected(proxy) as connection:
        proxy.set("to_server", corrupt_probability=1.0, corrupt_min_bytes=100)
        assert echo(connection, bytes(99)) == bytes(99)
        assert sum(byte.bit_count() for byte in echo(connection, bytes(100))) == 1


def test_a_reset_reaches_both_sides(proxy: FaultProxy, server: EchoServer) -> None:
    with connected(proxy) as connection:
        echo(connection, b"x")
        assert proxy.cut() == 1
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    assert server.ended.wait(TIMEOUT_S)
    assert server.endings == ["reset"]
    proxy.verify()
    with connected(proxy) as connection:
        assert echo(connection, b"x") == b"x"


def test_an_orderly_cut_ends_both_sides(proxy: FaultProxy, server: EchoServer) -> None:
    with connected(proxy) as connection:
        echo(connection, b"x")
        proxy.cut(reset=False)
        assert connection.recv(1) == b""
    assert server.ended.wait(TIMEOUT_S)
    assert server.endings == ["end"]


def test_it_ends_beside_a_connection_that_still_has_bytes_for_a_client_that_reads_nothing(
    server: EchoServer,
) -> None:
    upstream = OneUpstream("127.0.0.1", server.port)
    with contextlib.ExitStack() as after, FaultProxy(upstream) as proxy:
        connection = after.enter_context(connected(proxy))
        # More than all sockets on the way take: the proxy cannot send its last bytes.
        connection.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                connection.send(bytes(1 << 20))
        until_stuck(proxy)
        assert proxy.cut(reset=False) == 1
        for _ in range(100):
            proxy.heal()  # a turn of the proxy's loop: its task comes to wait for the last bytes
    # An exception in the proxy's thread would be a warning, and with it an error of this test.
    assert proxy.num_open == 0


def until_stuck(proxy: FaultProxy) -> None:
    """Return when no byte has passed to the client for a while."""
    num_before = -1
    while num_before != proxy.counts["to_client.bytes"] or not num_before:
        num_before = proxy.counts["to_client.bytes"]
        time.sleep(0.3)


def test_refused_connections_are_reset(proxy: FaultProxy) -> None:
    proxy.refuse()
    with pytest.raises(ConnectionResetError), connected(proxy) as connection:
        connection.recv(1)
    proxy.verify()


@pytest.mark.parametrize(
    "faults",
    [{"delay_s": 1.0}, {"hold": True}, {"drop": True}, {"bytes_per_s": 1.0}, {"corrupt_offset": 9}],
    ids=lambda faults: next(iter(faults)),
)
def test_a_fault_that_met_no_traffic_fails_its_test(
    proxy: FaultProxy, faults: dict[str, float]
) -> None:
    with pytest.raises(FaultDidNotHappen, match="to_server"), proxy.fault(**faults):
        pass


def test_a_cut_of_nothing_fails_its_test(proxy: FaultProxy) -> None:
    assert proxy.cut() == 0
    with pytest.raises(FaultDidNotHappen, match="cut"):
        proxy.verify()


async def test_it_works_beside_an_event_loop(proxy: FaultProxy) -> None:
    reader, writer = await asyncio.open_connection(proxy.host, proxy.port)
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        await reader.read(1)
    writer.close()


class ReadyServer:
    """Answers each connection with its readiness, then says its name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_ready = True
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = await reader.readline()
            if line.startswith(b"GET /readyz"):
                status = b"200 OK" if self.is_ready else b"503 Service Unavailable"
                writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")
            else:
                writer.write(self.name.encode())
            await writer.drain()
        finally:
            # The client may be gone already; nothing may outlive the test's loop.
            writer.transport.abort() if reader.at_eof() else writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


async def who_answers(proxy: FaultProxy) -> str:
    return await name_at(proxy.host, proxy.port)


async def name_at(host: str, port: int) -> str:
    """Of a new connection; "" when it was reset."""
    try:
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"who\n")
        name = await reader.read()
        writer.close()
        await writer.wait_closed()
    except ConnectionError:
        return ""
    return name.decode()


async def test_new_connections_go_to_servers_that_are_ready() -> None:
    first, second = ReadyServer("first"), ReadyServer("second")
    listeners = [await asyncio.start_server(s.serve, "127.0.0.1", 0) for s in (first, second)]
    urls = [f"http://127.0.0.1:{s.sockets[0].getsockname()[1]}" for s in listeners]
    upstreams = ReadyUpstreams(lambda: urls, poll_s=0.01)

    async def until(num_ready: int) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while len(upstreams.ready) != num_ready:
                await asyncio.sleep(0.01)

    with FaultProxy(upstreams) as proxy:
        await until(2)
        assert {await who_answers(proxy) for _ in range(4)} == {"first", "second"}
        first.is_ready = False
        await until(1)
        assert {await who_answers(proxy) for _ in range(4)} == {"second"}
        listeners[1].close()
        urls.append("http://127.0.0.1:1")
        await until(0)
        assert await who_answers(proxy) == ""
    # Accepted in order: behind this one, no connection of the proxy's waits to be served.
    assert await name_at(*listeners[0].sockets[0].getsockname()) == "first"
    for listener in listeners:
        listener.close()
        await listener.wait_closed()

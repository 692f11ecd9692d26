"""A client that stops reading: what its socket may hold, and how it is cut off."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil

from baton.runtime.listening_socket import listening_socket
from services.gateway.server import SEND_BUFFER_BYTES, HttpServer
from tests.integration.gateway.gateway_stack import Stack, running_stack, until_ready
from tests.unit.gateway.fakes import KEY


def test_accepted_sockets_have_a_small_send_buffer() -> None:
    with listening_socket("127.0.0.1:0", send_buffer_bytes=SEND_BUFFER_BYTES) as listener:
        listener.listen()
        listener.setblocking(True)
        with socket.create_connection(listener.getsockname()):
            accepted, _ = listener.accept()
        with accepted:
            size = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
            assert size <= 2 * SEND_BUFFER_BYTES, "the kernel doubles what it is asked for"


async def until_served(stack: Stack) -> None:
    """Return when the gateway knows its key and its workers: it refuses nothing from then on."""
    key = {"authorization": f"Bearer {KEY}"}
    await until_ready(stack)
    async with asyncio.timeout(60), httpx.AsyncClient(headers=key) as http:
        while (await http.get(f"{stack.root}/v1/models")).status_code != 200:
            await asyncio.sleep(0.02)


async def connected(port: int) -> socket.socket:
    """A client that takes little before it reads; the gateway has bound its port already."""
    while True:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
        except ConnectionRefusedError:
            client.close()
            await asyncio.sleep(0.02)
        else:
            return client


def is_held(port: int, client: socket.socket) -> bool:
    """Whether the gateway, which runs in this process, still has its end of the connection."""
    ends = (client.getpeername(), client.getsockname())
    return any((x.laddr, x.raddr) == ends for x in psutil.Process().net_connections("tcp"))


def request(**more: object) -> bytes:
    fields = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], **more}
    body = msgspec.json.encode(fields)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def test_a_reader_that_stops_is_cut_off_and_its_request_ends_as_stalled(
    tmp_path: Path,
) -> None:
    async with running_stack(tmp_path, stall_s=0.5) as stack:
        await until_served(stack)
        stack.worker.texts, stack.worker.step_s = ["x" * 20_000], 0
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(60):
            client = await connected(stack.port)
        with client:
            await loop.sock_sendall(client, request(stream=True))
            async with asyncio.timeout(60):
                while not stack.quota.settled:
                    await asyncio.sleep(0.05)
            answer = b""
            async with asyncio.timeout(60):
                try:
                    while piece := await loop.sock_recv(client, 65_536):
                        answer += piece
                except ConnectionResetError:
                    pass
        [record] = stack.quota.settled
        assert record.finish_reason == "client_stalled"
        assert 0 < record.num_output_tokens < 20_000
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"[DONE]" not in answer
        # What lay in the gateway's own buffer was dropped, not kept until the client reads again.
        assert answer.count(b"data: ") < record.num_output_tokens


async def test_a_slow_but_steady_reader_gets_all_of_an_answer_that_is_written(
    tmp_path: Path,
) -> None:
    """To the kernel a window that opens a little at a time is a peer that acknowledges nothing."""
    # All of it takes seconds. A reader that the machine kept from reading was not steady.
    for stall_s in (0.25, 0.5, 1.0, 2.0):
        async with running_stack(tmp_path, stall_s=stall_s) as stack:
            await until_served(stack)
            stack.worker.texts, stack.worker.step_s = ["x" * 40], 0
            async with asyncio.timeout(60):
                answer, pause_s = await read_slowly(stack.port)
        if answer.endswith(END) or pause_s < stall_s / 2:
            break
    assert b"data: [DONE]" in answer


END = b"0\r\n\r\n"


async def read_slowly(port: int) -> tuple[bytes, float]:
    """What comes until the end of the answer or the connection, and the longest pause between two
    reads."""
    loop = asyncio.get_running_loop()
    answer, pause_s, read_s = b"", 0.0, loop.time()
    with await connected(port) as client:
        await loop.sock_sendall(client, request(stream=True))
        with contextlib.suppress(ConnectionError):
            while not answer.endswith(END) and (piece := await loop.sock_recv(client, 100)):
                answer += piece
                await asyncio.sleep(0.05)
                pause_s, read_s = max(pause_s, loop.time() - read_s), loop.time()
    return answer, pause_s


@contextlib.asynccontextmanager
async def serving(app: Any, *, stall_s: float) -> AsyncIterator[int]:
    """The gateway's server with an application of its own; its port."""
    server = HttpServer(app, drain_cap_s=1, stall_s=stall_s)
    bound = listening_socket("127.0.0.1:0", send_buffer_bytes=SEND_BUFFER_BYTES)
    running = asyncio.create_task(server.serve([bound]))
    yield bound.getsockname()[1]
    server.drain()
    await running


async def test_the_end_of_an_answer_that_nobody_takes_is_not_kept() -> None:
    answered = asyncio.Event()

    async def large_answer(scope: object, receive: object, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 1_000_000})
        answered.set()

    async with serving(large_answer, stall_s=0.3) as port, asyncio.timeout(60):
        client = await connected(port)
        with client:
            await asyncio.get_running_loop().sock_sendall(client, request())
            await answered.wait()
            while is_held(port, client):
                await asyncio.sleep(0.05)

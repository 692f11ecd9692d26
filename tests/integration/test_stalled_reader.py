"""A client that stops reading: what its socket may hold, and how it is cut off."""

import asyncio
import socket
from pathlib import Path

import msgspec
import pytest

from services.gateway.serving import SEND_BUFFER_BYTES, listening_socket
from tests.integration.gateway_stack import running_stack
from tests.unit.gateway.fakes import KEY


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux has it")
def test_accepted_sockets_have_a_small_send_buffer_and_a_limit_for_unsent_data() -> None:
    with listening_socket("127.0.0.1:0", stall_s=30) as listener:
        listener.listen()
        listener.setblocking(True)
        with socket.create_connection(listener.getsockname()):
            accepted, _ = listener.accept()
        with accepted:
            size = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
            assert size <= 2 * SEND_BUFFER_BYTES, "the kernel doubles what it is asked for"
            timeout_ms = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            assert timeout_ms == 60_000


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


async def test_a_reader_that_stops_is_cut_off_and_its_request_ends_as_stalled(
    tmp_path: Path,
) -> None:
    async with running_stack(tmp_path, stall_s=0.5) as stack:
        stack.worker.texts, stack.worker.step_s = ["x" * 20_000], 0
        fields = {"model": "demo", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
        body = msgspec.json.encode(fields)
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(20):
            client = await connected(stack.port)
        with client:
            await loop.sock_sendall(client, head.encode() + body)
            async with asyncio.timeout(20):
                while not stack.quota.settled:
                    await asyncio.sleep(0.05)
            answer = b""
            async with asyncio.timeout(20):
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

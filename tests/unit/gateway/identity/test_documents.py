"""Documents behind URLs: how a fetch fails."""

import asyncio

import pytest

from services.gateway.clients.url import MAX_BYTES, fetch

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", OSError),
        (CHUNKED + b"5\r\nhel", OSError),
        (b"HTTP/1.1 503 Unavailable\r\nContent-Length: 0\r\n\r\n", OSError),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (MAX_BYTES + 1), ValueError),
    ],
)
async def test_an_answer_that_is_not_a_document_is_a_failure_of_the_fetch(
    answer: bytes, failure: type[Exception]
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(failure):
            await fetch(f"http://127.0.0.1:{port}/keys")


@pytest.mark.parametrize("url", ["", "http://plain.example/keys", "file:///etc/passwd"])
async def test_only_documents_over_tls_or_of_this_machine_are_fetched(url: str) -> None:
    with pytest.raises(ValueError, match="https"):
        await fetch(url)

"""A request with two lengths at the gateway itself, which may have no Envoy in front."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.integration.edge.edge_stack import send_two_lengths
from tests.integration.gateway.gateway_stack import Stack, running_stack, until_ready
from tests.unit.gateway.fakes import KEY

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("stack")) as running:
        await until_ready(running)
        yield running


@pytest.mark.parametrize("order", [("length", "chunked"), ("chunked", "length")])
@pytest.mark.parametrize("cut", ["whole", "lines"])
async def test_two_lengths_are_one_400_and_a_close(
    stack: Stack, order: tuple[str, str], cut: str
) -> None:
    answer = await send_two_lengths(stack.port, order, cut)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1


async def exchange(stack: Stack, sent: bytes) -> tuple[bytes, bytes]:
    """Head and body of everything that the server says until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    try:
        writer.write(sent)
        async with asyncio.timeout(60):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            return head.lower(), body
    finally:
        writer.close()


def request(version: bytes, head: bytes, **more: Any) -> bytes:
    body = json.dumps({"model": "demo", "messages": [{"role": "user", "content": "hi"}], **more})
    length = b"content-length: %d\r\n" % len(body)
    key = b"authorization: Bearer %b\r\n" % KEY.encode()
    first = b"POST /v1/chat/completions HTTP/" + version + b"\r\n"
    return first + head + key + length + b"\r\n" + body.encode()


@pytest.mark.parametrize("head", [b"", b"host: x\r\n"])
async def test_a_client_of_http_1_0_reads_a_stream_to_the_end_of_its_connection(
    stack: Stack, head: bytes
) -> None:
    answer, body = await exchange(stack, request(b"1.0", head, stream=True))
    assert b" 200 ok" in answer.split(b"\r\n")[0]
    assert b"transfer-encoding" not in answer
    assert b"connection: close" in answer
    assert body.startswith(b"data: {")
    assert body.endswith(b"data: [DONE]\n\n")


async def test_a_client_of_http_1_0_gets_a_whole_answer_of_a_known_length(stack: Stack) -> None:
    answer, body = await exchange(stack, request(b"1.0", b""))
    assert b"content-length: %d" % len(body) in answer
    assert json.loads(body)["choices"]


@pytest.mark.parametrize("head", [b"", b"host: a\r\nhost: b\r\n", b"Host: a\r\nhost: a\r\n"])
async def test_a_request_names_one_host(stack: Stack, head: bytes) -> None:
    answer, body = await exchange(stack, request(b"1.1", head))
    assert answer.startswith(b"http/1.1 400 ")
    error = json.loads(body)["error"]
    assert error["code"] == "invalid_http"
    assert "Host" in error["message"]

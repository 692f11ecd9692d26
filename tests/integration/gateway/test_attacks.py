"""One key against a real gateway over real sockets: clients that leave at once."""

import asyncio
import socket
from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest
import pytest_asyncio
from prometheus_client import REGISTRY

from tests.integration.gateway.gateway_stack import Stack, running_stack
from tests.unit.gateway.fakes import KEY

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("stack")) as running:
        yield running


async def chat(stack: Stack) -> httpx.Response:
    """One request of a client that stays; repeated until the gateway knows its fleet."""
    fields = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}
    headers = {"authorization": f"Bearer {KEY}"}
    async with asyncio.timeout(60), httpx.AsyncClient(base_url=stack.root) as http:
        while True:
            answer = await http.post("/v1/chat/completions", json=fields, headers=headers)
            if answer.status_code == 200:
                return answer
            await asyncio.sleep(0.02)


def request(fields: dict[str, object], extra: str = "") -> bytes:
    body = msgspec.json.encode(fields)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
        f"content-length: {len(body)}\r\n{extra}\r\n"
    )
    return head.encode() + body


def num_tokenized() -> float:
    """The calls of the tokenizer that have begun, also those that were cancelled."""
    labels = {"model_name": "demo", "stage": "tokenize"}
    return REGISTRY.get_sample_value("baton_gateway_stage_seconds_count", labels) or 0.0


async def test_clients_that_send_and_close_cost_no_tokenizing(stack: Stack) -> None:
    await chat(stack)
    num_before = num_tokenized()
    sent = request({"model": "demo", "messages": [{"role": "user", "content": "hi"}]})
    # The gateway runs in this very loop: all are closed before it sees the first.
    for _ in range(100):
        with socket.create_connection(("127.0.0.1", stack.port)) as client:
            client.sendall(sent)
    await chat(stack)
    assert num_tokenized() == num_before + 1

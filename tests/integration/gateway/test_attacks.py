"""One key against a real gateway: clients that leave, bodies that do not come or cost much."""

import asyncio
import socket
from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest
import pytest_asyncio
from prometheus_client import REGISTRY

from baton.system.clock import SystemClock
from baton.wire.failures import InvalidRequest
from services.gateway.clients.body_parser import ChildBodyParser
from services.gateway.openai.generation import PlainText
from services.gateway.tenants.auth import MAX_WRONG_KEYS
from tests.integration.gateway.gateway_stack import Stack, running_stack, until_ready
from tests.unit.gateway.fakes import KEY

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("stack")) as running:
        await until_ready(running)
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


async def test_a_guesser_of_keys_names_no_other_address_for_itself(stack: Stack) -> None:
    """Also beside the gateway, where proxies are that nobody has set."""
    async with httpx.AsyncClient(base_url=stack.root) as http:
        for number in range(MAX_WRONG_KEYS + 1):
            headers = {"authorization": f"Bearer {number}", "x-forwarded-for": f"10.0.0.{number}"}
            answer = await http.get("/v1/models", headers=headers)
    assert answer.status_code == 429


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


async def test_bodies_that_do_not_come_have_a_share_of_the_room_and_no_more(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    await chat(stack)
    monkeypatch.setattr("services.gateway.request.room.WAIT_S", 0.05)
    head, _, body = request({"model": "demo", "user": "x" * 8_000_000}).partition(b"\r\n\r\n")
    clients = [await asyncio.open_connection("127.0.0.1", stack.port) for _ in range(8)]
    for _, writer in clients:
        writer.write(head + b"\r\n\r\n" + body[:100])
    answers = [asyncio.ensure_future(reader.readuntil(b"\r\n\r\n")) for reader, _ in clients]
    async with asyncio.timeout(60):
        while sum(answer.done() for answer in answers) < 6:
            await asyncio.sleep(0.01)
        refusals = [answer.result() for answer in answers if answer.done()]
        assert all(refusal.startswith(b"HTTP/1.1 429 ") for refusal in refusals)
        assert all(b"retry-after: 1" in refusal for refusal in refusals)
        # The rest of its share is for small bodies.
        await chat(stack)
        for answer, (_, writer) in zip(answers, clients, strict=True):
            answer.cancel()
            writer.close()
        await asyncio.gather(*answers, return_exceptions=True)


async def test_a_large_body_is_parsed_in_another_process(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    await chat(stack)
    monkeypatch.setattr("services.gateway.openai.decoding.json", None)  # of this process
    turns = [{"role": "user", "content": "hi"}] * 2_000
    async with httpx.AsyncClient(base_url=stack.root, timeout=60) as http:
        answer = await http.post(
            "/v1/chat/completions",
            json={"model": "demo", "messages": turns},
            headers={"authorization": f"Bearer {KEY}"},
        )
    assert answer.json()["error"]["code"] == "context_length_exceeded"


async def test_a_body_that_becomes_too_large_in_memory_is_refused_and_the_next_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.gateway.clients.body_parser.MIN_MEMORY_BYTES", 64 * 1024 * 1024)
    parser = ChildBodyParser(SystemClock(), max_body_bytes=1)
    try:
        with pytest.raises(InvalidRequest) as caught:
            await parser.parse("completions", b'{"user":[' + b"{}," * 600_000 + b"1]}")
        assert caught.value.reason == "body_too_large"
        request = await parser.parse("completions", b'{"model":"m","prompt":"hi"}')
        assert request.prompt == PlainText("hi")
    finally:
        await parser.close()

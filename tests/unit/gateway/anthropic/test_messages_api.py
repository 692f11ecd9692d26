"""The paths of Anthropic's API through the whole app: keys, headers, streams, errors."""

import json
from typing import Any

from baton.wire.failures import LimitExceeded, NoRoom
from baton.wire.v1.failure_pb2 import LimitState
from tests.unit.gateway.fakes import KEY, Fleet, simulate
from tests.unit.gateway.test_app import Client, app_of, serve

HI = {"model": "demo", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}


async def ask(
    fleet: Fleet, path: str = "/v1/messages", method: str = "POST", **fields: Any
) -> Client:
    client = Client({**HI, **fields}, path, method)
    client.scope["headers"] = [(b"x-api-key", KEY.encode())]
    await serve(app_of(fleet), client)
    return client


def test_a_key_may_come_as_anthropics_clients_send_it() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = ["hello"]
        client = await ask(fleet)
        message = json.loads(client.body)
        assert (client.status, message["type"]) == (200, "message")
        assert [block["type"] for block in message["content"]] == ["text"]
        assert message["id"] == f"msg_{client.headers['request-id']}"
        assert client.headers["request-id"] == client.headers["x-request-id"]
        assert message["usage"]["output_tokens"] == fleet.record.num_output_tokens

    simulate(scenario)


def test_a_stop_sequence_ends_a_stream_and_is_named() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = ["ab#cd"]
        client = await ask(fleet, stream=True, stop_sequences=["#c"], max_tokens=50)
        events = [
            json.loads(event.partition("data: ")[2])
            for event in client.body.decode().split("\n\n")
            if event.startswith("event: ")
        ]
        deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
        assert "".join(delta["text"] for delta in deltas) == "ab"
        assert events[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "#c"}
        assert events[-1] == {"type": "message_stop"}

    simulate(scenario)


def test_tokens_are_counted_and_none_are_used() -> None:
    async def scenario(fleet: Fleet) -> None:
        client = await ask(fleet, "/v1/messages/count_tokens")
        assert client.status == 200
        assert json.loads(client.body)["input_tokens"] > 0

    simulate(scenario)


def error_of(client: Client) -> tuple[int, str]:
    body = json.loads(client.body)
    assert body["type"] == "error"
    assert body["request_id"] == client.headers["x-request-id"]
    return client.status, body["error"]["type"]


def test_errors_have_anthropics_form_and_status() -> None:
    async def scenario(fleet: Fleet) -> None:
        assert error_of(await ask(fleet, max_tokens=None)) == (400, "invalid_request_error")
        assert error_of(await ask(fleet, model="other")) == (404, "not_found_error")
        assert error_of(await ask(fleet, method="GET")) == (405, "invalid_request_error")
        for worker in fleet.workers.values():
            worker.refusal = NoRoom("full", retry_after_s=0.3)
        full = await ask(fleet, stream=True)
        assert error_of(full) == (529, "overloaded_error")
        assert full.headers["x-should-retry"] == "true"
        stranger = Client(HI, "/v1/messages")
        stranger.scope["headers"] = []
        await serve(app_of(fleet), stranger)
        assert error_of(stranger) == (401, "authentication_error")

    simulate(scenario)


def test_limits_have_anthropics_names_beside_ours() -> None:
    async def scenario(fleet: Fleet) -> None:
        limits = LimitState(limit_requests=60, remaining_requests=0, reset_requests_ms=1500)
        fleet.quota.limits = limits
        answered = (await ask(fleet)).headers
        assert answered["x-ratelimit-limit-requests"] == "60"
        assert answered["anthropic-ratelimit-requests-limit"] == "60"
        assert answered["anthropic-ratelimit-requests-remaining"] == "0"
        assert answered["anthropic-ratelimit-requests-reset"].endswith("Z")
        assert "anthropic-ratelimit-tokens-limit" not in answered
        fleet.quota.reserve_failure = LimitExceeded("no more", limits=limits, retry_after_s=2)
        refused = await ask(fleet)
        assert error_of(refused) == (429, "rate_limit_error")
        assert refused.headers["anthropic-ratelimit-requests-limit"] == "60"
        assert refused.headers["retry-after"] == "2"

    simulate(scenario)

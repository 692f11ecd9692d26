"""Responses in the background: polled, followed, resumed, cancelled, lost with their gateway."""

import asyncio
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from baton.wire.failures import LimitExceeded
from services.gateway.http import stored_responses
from services.gateway.stored.background_run import BEAT_S
from services.gateway.stored.store import ALIVE_S, StoreLimits
from tests.unit.gateway.stored.clients import Answered, Caller, with_store


async def until_ended(caller: Caller, path: str) -> dict[str, Any]:
    """Poll, as clients do."""
    while (response := (await caller.get(path)).json)["status"] in ("queued", "in_progress"):
        await asyncio.sleep(1)
    return response


def kinds(answered: Answered) -> list[str]:
    return [event["type"].removeprefix("response.") for event in answered.events]


def text(answered: Answered) -> str:
    deltas = [e["delta"] for e in answered.events if e["type"].endswith("output_text.delta")]
    return "".join(deltas)


def test_a_response_goes_on_without_its_client() -> None:
    async def scenario(caller: Caller) -> None:
        caller.fleet.worker.prefill_s = 5
        answer = await caller.create(background=True)
        assert (answer.status, answer.json["status"]) == (200, "queued")
        assert (answer.json["background"], answer.json["output"]) == (True, [])
        path = f"/v1/responses/{answer.json['id']}"
        await asyncio.sleep(1)
        assert caller.app.num_open == 1
        ended = await until_ended(caller, path)
        assert ended["status"] == "completed"
        assert ended["output"][0]["content"][0]["text"] == "Hello there."
        assert ended["usage"]["output_tokens"] == 13
        assert len(caller.fleet.quota.settled) == 1
        await asyncio.sleep(2)
        assert caller.app.num_open == 0

    with_store(scenario)


def test_a_stream_is_resumed_where_its_client_broke_off() -> None:
    async def scenario(caller: Caller) -> None:
        caller.fleet.worker.step_s = 1
        first = caller.begin(
            "POST",
            "/v1/responses",
            {"model": "demo", "input": "hi", "background": True, "stream": True},
        )
        await asyncio.sleep(4)
        assert kinds(first)[:4] == ["created", "queued", "in_progress", "output_item.added"]
        first.gone.set()
        await asyncio.sleep(1)
        seen = first.events[-1]["sequence_number"]
        name = first.events[0]["response"]["id"]
        path = f"/v1/responses/{name}?stream=true"
        # Another gateway shares the store, and nothing else.
        rest = await Caller(caller.fleet, caller.redis).get(f"{path}&starting_after={seen}")
        assert rest.headers["content-type"].startswith("text/event-stream")
        assert text(first) + text(rest) == "Hello there."
        assert text(first)
        assert text(rest)
        again = await caller.get(path)
        assert again.events == first.events + rest.events
        numbers = [event["sequence_number"] for event in again.events]
        assert numbers == list(range(len(numbers)))
        adapter: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
        for event in again.events:
            adapter.validate_python(event)
        fetched = (await caller.get(f"/v1/responses/{name}")).json
        assert again.events[-1]["response"] == fetched
        Response.model_validate(fetched)

    with_store(scenario)


def test_who_follows_a_response_does_not_read_all_of_it_each_time() -> None:
    async def scenario(caller: Caller) -> None:
        caller.fleet.worker.step_s = 1
        fields = {"model": "demo", "input": "hi", "background": True, "stream": True}
        followed = caller.begin("POST", "/v1/responses", fields)
        await asyncio.sleep(30)
        assert kinds(followed)[-1] == "completed"
        assert caller.redis.num_read["XRANGE"] > 100
        assert caller.redis.num_read["HMGET"] == 0

    with_store(scenario)


def test_a_repeated_background_stream_is_not_run_again() -> None:
    async def scenario(caller: Caller) -> None:
        caller.fleet.worker.step_s = 1
        fields = {"model": "demo", "input": "hi", "background": True, "stream": True}
        key = {"idempotency-key": "k1"}
        first = caller.begin("POST", "/v1/responses", fields, key)
        await asyncio.sleep(4)
        first.gone.set()
        await asyncio.sleep(1)
        again = await caller.call("POST", "/v1/responses", fields, key)
        assert again.error == "409 answer_not_kept Idempotency-Key"
        await asyncio.sleep(30)
        assert len(caller.fleet.quota.settled) == 1

    with_store(scenario)


def test_a_response_is_one_open_request() -> None:
    async def scenario(caller: Caller) -> None:
        caller.fleet.worker.step_s = 10
        caller.begin("POST", "/v1/responses", {"model": "demo", "input": "hi"})
        await asyncio.sleep(15)
        assert caller.app.num_open == 1
        await asyncio.sleep(300)
        assert caller.app.num_open == 0

    with_store(scenario)


def test_only_a_background_stream_can_be_followed() -> None:
    async def scenario(caller: Caller) -> None:
        for fields in ({"background": True}, {"stream": False}):
            name = (await caller.create(**fields)).json["id"]
            refused = await caller.get(f"/v1/responses/{name}?stream=true")
            assert refused.error == "400 invalid_value stream"

    with_store(scenario)


@pytest.mark.parametrize("stream", [False, True])
def test_a_cancelled_response_stops_its_worker(stream: bool) -> None:
    async def scenario(caller: Caller) -> None:
        caller.fleet.worker.step_s = 10
        fields = {"model": "demo", "input": "hi", "background": True, "stream": stream}
        created = caller.begin("POST", "/v1/responses", fields)
        await asyncio.sleep(15)
        name = (created.events[0]["response"] if stream else created.json)["id"]
        path = f"/v1/responses/{name}"
        assert (await caller.get(path)).json["status"] == "in_progress"
        # Another gateway shares the store, and nothing else.
        other = Caller(caller.fleet, caller.redis)
        cancelled = await other.call("POST", f"{path}/cancel")
        assert (cancelled.status, cancelled.json["status"]) == (200, "cancelled")
        await asyncio.sleep(2 * BEAT_S)
        assert caller.fleet.worker.cancels
        assert len(caller.fleet.quota.settled) == 1
        assert caller.app.num_open == 0, "the stream has ended, too"
        assert (await caller.get(path)).json["status"] == "cancelled"
        again = await caller.call("POST", f"{path}/cancel")
        assert (again.status, again.json["status"]) == (200, "cancelled")

    with_store(scenario)


def test_a_response_that_is_cancelled_as_it_ends_is_not_part_of_its_conversation() -> None:
    async def scenario(caller: Caller) -> None:
        caller.fleet.worker.prefill_s = 4.6
        name = (await caller.call("POST", "/v1/conversations", {})).json["id"]
        response = (await caller.create(background=True, conversation=name)).json
        await asyncio.sleep(4.4)
        # Between two looks of the gateway that computes it.
        await caller.call("POST", f"/v1/responses/{response['id']}/cancel")
        await asyncio.sleep(5)
        assert caller.fleet.record.finish_reason == "stop"
        assert (await caller.get(f"/v1/conversations/{name}/items")).json["data"] == []

    with_store(scenario)


def test_only_a_response_in_the_background_can_be_cancelled() -> None:
    async def scenario(caller: Caller) -> None:
        name = (await caller.create()).json["id"]
        refused = await caller.call("POST", f"/v1/responses/{name}/cancel")
        assert refused.status == 400
        assert (await caller.call("POST", "/v1/responses/resp_x/cancel")).status == 404

    with_store(scenario)


def test_a_deleted_response_stops_its_worker() -> None:
    async def scenario(caller: Caller) -> None:
        caller.fleet.worker.step_s = 10
        path = f"/v1/responses/{(await caller.create(background=True)).json['id']}"
        await asyncio.sleep(15)
        assert (await caller.call("DELETE", path)).status == 200
        await asyncio.sleep(2 * BEAT_S)
        assert caller.fleet.worker.cancels
        assert (await caller.get(path)).status == 404

    with_store(scenario)


def test_a_response_fails_with_its_gateway() -> None:
    async def scenario(caller: Caller) -> None:
        caller.fleet.worker.step_s = 1000
        name = (await caller.create(background=True)).json["id"]
        await asyncio.sleep(1)
        for task in list(caller.app._tasks):
            task.cancel()
        await asyncio.sleep(1)
        alive = await caller.redis.ttl(f"baton:stored:{{acme}}:{name}:alive")
        assert 0 < alive <= ALIVE_S
        path = f"/v1/responses/{name}"
        assert (await caller.get(path)).json["status"] == "in_progress"
        await caller.redis.delete(f"baton:stored:{{acme}}:{name}:alive")
        lost = (await caller.get(path)).json
        assert (lost["status"], lost["error"]["code"]) == ("failed", "server_error")
        caller.fleet.worker.step_s = 0.01
        answer = await caller.create(previous_response_id=name)
        assert answer.status == 200, "what it was asked is still there"

    with_store(scenario)


def test_a_request_that_cannot_begin_is_refused_at_once() -> None:
    async def scenario(caller: Caller) -> None:
        caller.fleet.quota.reserve_failure = LimitExceeded("too many", retry_after_s=3)
        refused = await caller.create(background=True)
        assert refused.error == "429 rate_limit_exceeded None"
        assert refused.headers["retry-after"] == "3"
        assert (await caller.create(background=True, temperature=9)).status == 400
        assert not await caller.redis.keys("*")
        refused = await caller.create(background=True, store=False)
        assert refused.error == "400 invalid_value background"

    with_store(scenario)


def test_a_failure_later_on_ends_the_response() -> None:
    async def scenario(caller: Caller) -> None:
        caller.fleet.worker.step_s = 1
        answer = await caller.create(background=True, stream=False)
        await asyncio.sleep(3)
        caller.fleet.unreachable |= set(caller.fleet.workers)
        caller.fleet.worker.cut()
        ended = await until_ended(caller, f"/v1/responses/{answer.json['id']}")
        assert ended["status"] == "failed"
        assert ended["error"]["code"] == "server_error"
        (record,) = caller.fleet.quota.settled
        assert ended["usage"]["input_tokens"] == record.num_prompt_tokens > 0
        assert ended["usage"]["output_tokens"] == record.num_output_tokens > 0

    with_store(scenario)


def test_a_gateway_that_leaves_ends_what_it_computes() -> None:
    async def scenario(caller: Caller) -> None:
        caller.fleet.worker.step_s = 1000
        path = f"/v1/responses/{(await caller.create(background=True)).json['id']}"
        await asyncio.sleep(1)
        assert not await caller.app.idle(5)
        caller.app.cut_off()
        assert await caller.app.idle(5)
        ended = (await caller.get(path)).json
        assert ended["status"] == "failed"
        assert "draining" in ended["error"]["message"]

    with_store(scenario)


def test_a_response_that_grows_too_large_fails() -> None:
    async def scenario(caller: Caller) -> None:
        caller.fleet.worker.texts = ["x" * 400]
        answer = await caller.create(background=True)
        ended = await until_ended(caller, f"/v1/responses/{answer.json['id']}")
        assert (ended["status"], ended["output"]) == ("failed", [])
        assert "body_too_large" in ended["error"]["message"]

    with_store(scenario, StoreLimits(max_object_bytes=2000))


def test_a_store_that_is_away_for_a_while_loses_no_event() -> None:
    async def scenario(caller: Caller) -> None:
        caller.fleet.worker.step_s = 1
        fields = {"model": "demo", "input": "hi", "background": True, "stream": True}
        created = caller.begin("POST", "/v1/responses", fields)
        await asyncio.sleep(4)
        caller.redis.is_away = True
        await asyncio.sleep(4)
        caller.redis.is_away = False
        await asyncio.sleep(20)
        assert text(created) == "Hello there."
        assert kinds(created)[-1] == "completed"

    with_store(scenario)


def test_an_input_that_is_too_large_to_be_kept_is_refused_at_once() -> None:
    async def scenario(caller: Caller) -> None:
        refused = await caller.create("x" * 900, background=True)
        assert refused.error == "413 body_too_large None"
        await asyncio.sleep(2)
        assert caller.app.num_open == 0
        assert not await caller.redis.keys("*")

    with_store(scenario, StoreLimits(max_object_bytes=1000))


def test_a_repeated_request_gets_the_same_response() -> None:
    async def scenario(caller: Caller) -> None:
        key = {"idempotency-key": "k1"}
        fields = {"model": "demo", "input": "hi", "background": True}
        first = await caller.call("POST", "/v1/responses", fields, key)
        again = await caller.call("POST", "/v1/responses", fields, key)
        assert (again.status, again.json["id"]) == (200, first.json["id"])
        await until_ended(caller, f"/v1/responses/{first.json['id']}")
        assert len(caller.fleet.worker.submits) == 1

    with_store(scenario)


def test_a_request_that_is_cancelled_by_its_id_is_a_cancelled_response() -> None:
    async def scenario(caller: Caller) -> None:
        caller.fleet.worker.step_s = 10
        name = (await caller.create(background=True)).json["id"]
        await asyncio.sleep(15)
        request = f"/v1/requests/{name.removeprefix('resp_')}"
        assert (await caller.call("DELETE", request)).status == 200
        await asyncio.sleep(1)
        assert (await caller.get(f"/v1/responses/{name}")).json["status"] == "cancelled"

    with_store(scenario)


def test_a_tenant_follows_so_many_streams_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_responses, "MAX_FOLLOWED", 1)

    async def scenario(caller: Caller) -> None:
        caller.fleet.worker.step_s = 1
        fields = {"model": "demo", "input": "hi", "background": True, "stream": True}
        created = caller.begin("POST", "/v1/responses", fields)
        await asyncio.sleep(1)
        path = f"/v1/responses/{created.events[0]['response']['id']}?stream=true"
        first = caller.begin("GET", path)
        await asyncio.sleep(1)
        assert (await caller.get(path)).error == "429 share_exceeded None"
        first.gone.set()
        await asyncio.sleep(1)
        assert (await caller.get(path)).events[-1]["type"] == "response.completed"

    with_store(scenario)

"""Responses that are kept: fetched, followed by another one, deleted."""

import asyncio
import json
from typing import Any

import pytest

from services.gateway.stored.store import LOOK_AT_MEMORY_S, StoreLimits
from tests.unit.gateway.fakes import Fleet, simulate
from tests.unit.gateway.stored.clients import Caller, with_store


def told(caller: Caller) -> list[dict[str, Any]]:
    """The conversation that the tokenizer got last."""
    return json.loads(caller.fleet.tokenizer.encoded[-1].chat.messages_json)


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_is_fetched_as_it_was_given(stream: bool) -> None:
    async def scenario(caller: Caller) -> None:
        answer = await caller.create(stream=stream)
        response = answer.events[-1]["response"] if stream else answer.json
        assert response["store"] is True
        assert response["completed_at"] >= response["created_at"]
        fetched = await caller.get(f"/v1/responses/{response['id']}")
        assert (fetched.status, fetched.json) == (200, response)

    with_store(scenario)


@pytest.mark.parametrize("stream", [False, True])
def test_the_items_of_an_answer_have_the_same_order_in_every_form(stream: bool) -> None:
    async def scenario(caller: Caller) -> None:
        call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
        caller.fleet.worker.texts = [f"First.\n{call}\nThen this."]
        tools = [{"type": "function", "name": "f", "strict": False}]
        answer = await caller.create(tools=tools, stream=stream)
        given = answer.events[-1]["response"] if stream else answer.json
        kinds = [item["type"] for item in given["output"]]
        assert kinds == ["message", "function_call", "message"]
        fetched = (await caller.get(f"/v1/responses/{given['id']}")).json
        assert fetched == given

    with_store(scenario)


def test_what_came_before_stands_before_the_input_without_its_instructions() -> None:
    async def scenario(caller: Caller) -> None:
        first = (await caller.create("one", instructions="be short")).json
        second = (await caller.create("two", previous_response_id=first["id"])).json
        assert second["previous_response_id"] == first["id"]
        answer = {"role": "assistant", "content": "Hello there."}
        expected = [
            {"role": "user", "content": "one"},
            answer,
            {"role": "user", "content": "two"},
        ]
        assert told(caller) == expected
        await caller.call("DELETE", f"/v1/responses/{first['id']}")
        await caller.create("three", previous_response_id=second["id"], instructions="be long")
        assert told(caller) == [
            {"role": "system", "content": "be long"},
            *expected,
            answer,
            {"role": "user", "content": "three"},
        ], "a response outlives those it follows"

    with_store(scenario)


@pytest.mark.parametrize(
    ("kind", "roles"),
    [
        ("previous_response_id", ["system", "user", "assistant", "user"]),
        ("conversation", ["system", "user", "user"]),
    ],
)
def test_a_long_thread_is_read_beside_the_event_loop(kind: str, roles: list[str]) -> None:
    async def scenario(caller: Caller) -> None:
        caller.fleet.tokenizer.tokens_per_byte = 0.01
        said = [{"role": "user", "content": "x" * 20_000}]
        if kind == "conversation":
            name = (await caller.call("POST", "/v1/conversations", {"items": said})).json["id"]
        else:
            name = (await caller.create(said)).json["id"]
        fields = {kind: name, "instructions": "be short", "reasoning": {"effort": "low"}}
        num_parsed = caller.fleet.body_parser.num_parsed
        assert (await caller.create("y" * 20_000, **fields)).status == 200
        assert caller.fleet.body_parser.num_parsed == num_parsed + 1
        assert [turn["role"] for turn in told(caller)] == roles
        kwargs = json.loads(caller.fleet.tokenizer.encoded[-1].chat.template_kwargs_json)
        assert kwargs["reasoning_effort"] == "low"

    with_store(scenario)


@pytest.mark.parametrize(
    ("name", "arguments"), [("f", '{"a": "' + "x" * 99), ("f", '{"a": }'), ("f" * 600, "{}")]
)
def test_a_call_that_is_broken_does_not_end_its_thread(name: str, arguments: str) -> None:
    async def scenario(caller: Caller) -> None:
        worker = caller.fleet.worker
        call = f'{{"name": "{name}", "arguments": {arguments}}}'
        worker.texts = [f"<tool_call>\n{call}\n</tool_call>"]
        conversation = (await caller.call("POST", "/v1/conversations", {})).json["id"]
        tools = [{"type": "function", "name": "f", "strict": False}]
        fields = {"tools": tools, "max_output_tokens": 70 + len(name), "conversation": conversation}
        broken = (await caller.create(**fields)).json
        assert [item["type"] for item in broken["output"]] == ["function_call"]
        worker.texts = ["Fine."]
        assert (await caller.create(previous_response_id=broken["id"])).status == 200
        assert (await caller.create(conversation=conversation)).status == 200

    with_store(scenario)


def test_input_items_are_listed_in_pages_the_newest_first() -> None:
    async def scenario(caller: Caller) -> None:
        first = (await caller.create("one")).json
        second = (await caller.create("two", previous_response_id=first["id"])).json
        path = f"/v1/responses/{second['id']}/input_items"
        newest = (await caller.get(f"{path}?limit=2")).json
        texts = [item["content"][0]["text"] for item in newest["data"]]
        assert (texts, newest["has_more"]) == (["two", "Hello there."], True)
        rest = (await caller.get(f"{path}?limit=2&after={newest['last_id']}")).json
        assert [item["content"][0]["text"] for item in rest["data"]] == ["one"]
        assert rest["has_more"] is False
        ids = [item["id"] for item in (await caller.get(f"{path}?order=asc")).json["data"]]
        assert ids == [rest["first_id"], newest["last_id"], newest["first_id"]]
        assert (await caller.get(f"{path}?limit=0")).error == "400 invalid_value limit"
        assert (await caller.get(f"{path}?after=x")).error == "400 invalid_value after"

    with_store(scenario)


def test_store_false_keeps_nothing() -> None:
    async def scenario(caller: Caller) -> None:
        response = (await caller.create(store=False)).json
        assert response["store"] is False
        path = f"/v1/responses/{response['id']}"
        assert (await caller.get(path)).error == "404 not_found None"
        refused = await caller.create(previous_response_id=response["id"])
        assert refused.error == "400 previous_response_not_found previous_response_id"

    with_store(scenario)


def test_a_deleted_response_is_gone() -> None:
    async def scenario(caller: Caller) -> None:
        path = f"/v1/responses/{(await caller.create()).json['id']}"
        deleted = await caller.call("DELETE", path)
        assert (deleted.status, deleted.json["deleted"]) == (200, True)
        assert (await caller.get(path)).status == 404
        assert (await caller.call("DELETE", path)).status == 404

    with_store(scenario)


def test_another_tenant_finds_nothing() -> None:
    async def scenario(caller: Caller) -> None:
        path = f"/v1/responses/{(await caller.create()).json['id']}"
        caller.fleet.quota.principal.tenant = "other"
        await asyncio.sleep(caller.fleet.quota.principal.fresh_for_s + 1)
        assert (await caller.get(path)).status == 404

    with_store(scenario)


@pytest.mark.parametrize("name", ["bytes", "index", "sizes", "{}:items", "{}:events"])
def test_a_name_of_something_else_in_the_store_is_not_found(name: str) -> None:
    async def scenario(caller: Caller) -> None:
        fields = {"items": [{"role": "user", "content": "hi"}]}
        conversation = (await caller.call("POST", "/v1/conversations", fields)).json["id"]
        wrong = name.format(conversation)
        for path in (f"/v1/responses/{wrong}", f"/v1/conversations/{wrong}/items"):
            assert (await caller.get(path)).status == 404
        assert (await caller.create(conversation=wrong)).status == 404
        assert (await caller.create(previous_response_id=wrong)).status == 400

    with_store(scenario)


def test_the_oldest_responses_of_a_tenant_make_room_for_new_ones() -> None:
    async def scenario(caller: Caller) -> None:
        paths = [f"/v1/responses/{(await caller.create()).json['id']}" for _ in range(4)]
        statuses = [(await caller.get(path)).status for path in paths]
        assert statuses == [404, 404, 200, 200]

    with_store(scenario, StoreLimits(max_objects_of_tenant=2))


def test_a_response_that_is_too_large_is_answered_and_not_kept() -> None:
    async def scenario(caller: Caller) -> None:
        response = await caller.create("x" * 200)
        assert response.status == 200
        assert (await caller.get(f"/v1/responses/{response.json['id']}")).status == 404

    with_store(scenario, StoreLimits(max_object_bytes=1000))


def test_an_answer_is_given_while_the_store_is_away() -> None:
    async def scenario(caller: Caller) -> None:
        caller.redis.is_away = True
        assert (await caller.create()).json["status"] == "completed"
        refused = await caller.create(previous_response_id="resp_1")
        assert refused.error == "503 store_unavailable None"

    with_store(scenario)


def test_a_gateway_without_a_store_says_so() -> None:
    async def scenario(fleet: Fleet) -> None:
        caller = Caller(fleet)
        assert (await caller.create(store=True)).json["store"] is False
        for fields in ({"previous_response_id": "resp_1"}, {"conversation": "conv_1"}):
            (param,) = fields
            refused = await caller.create(**fields)
            assert refused.error == f"400 unsupported_parameter {param}"
        refused = await caller.create(background=True)
        assert refused.error == "400 unsupported_parameter background"

    simulate(scenario)


def test_nothing_is_kept_of_a_tenant_that_the_operator_excludes() -> None:
    async def scenario(caller: Caller) -> None:
        response = (await caller.create()).json
        assert response["store"] is False
        assert (await caller.get(f"/v1/responses/{response['id']}")).status == 404

    with_store(scenario, StoreLimits(excluded_tenants=("acme",)))


def test_the_tokens_of_a_prompt_are_counted_with_what_stands_before_it() -> None:
    async def scenario(caller: Caller) -> None:
        path = "/v1/responses/input_tokens"
        first = (await caller.create("one", instructions="be short")).json
        fields = {"model": "demo", "input": "one", "instructions": "be short", "stream": True}
        counted = (await caller.call("POST", path, fields)).json
        expected = {"object": "response.input_tokens", "input_tokens": 0}
        assert counted == expected | {"input_tokens": first["usage"]["input_tokens"]}
        second = await caller.create("two", previous_response_id=first["id"])
        fields = {"model": "demo", "input": "two", "previous_response_id": first["id"]}
        counted = (await caller.call("POST", path, fields)).json
        assert counted["input_tokens"] == second.json["usage"]["input_tokens"]
        assert len(caller.fleet.worker.submits) == 2

    with_store(scenario)


def test_nothing_new_is_kept_while_redis_is_nearly_full() -> None:
    async def scenario(caller: Caller) -> None:
        kept = (await caller.create()).json["id"]
        caller.redis.memory = {"used_memory": 81, "maxmemory": 100}
        await asyncio.sleep(LOOK_AT_MEMORY_S)
        response = await caller.create()
        assert response.status == 200
        assert (await caller.get(f"/v1/responses/{response.json['id']}")).status == 404
        for path in ("/v1/responses", "/v1/conversations"):
            fields = {"model": "demo", "input": "hi", "background": True}
            refused = await caller.call("POST", path, fields if "responses" in path else {})
            assert refused.error == "503 store_unavailable None"
        assert (await caller.get(f"/v1/responses/{kept}")).status == 200
        caller.redis.memory = {"used_memory": 1, "maxmemory": 100}
        await asyncio.sleep(LOOK_AT_MEMORY_S)
        assert (await caller.create(background=True)).json["status"] == "queued"

    with_store(scenario)

"""Items of an input that only name an item that is stored."""

import json
import tracemalloc
from typing import Any

import pytest

from services.gateway.stored.store import StoreLimits
from tests.unit.gateway.fakes import Fleet, simulate
from tests.unit.gateway.stored.clients import Caller, with_store


def told(caller: Caller) -> list[dict[str, Any]]:
    """The conversation that the tokenizer got last."""
    return json.loads(caller.fleet.tokenizer.encoded[-1].chat.messages_json)


def reference_to(name: str) -> dict[str, str]:
    return {"type": "item_reference", "id": name}


async def items_before(caller: Caller, response: dict[str, Any]) -> list[dict[str, Any]]:
    listed = await caller.get(f"/v1/responses/{response['id']}/input_items?order=asc")
    return listed.json["data"]


def test_a_reference_stands_for_an_item_of_an_earlier_answer() -> None:
    async def scenario(caller: Caller) -> None:
        first = (await caller.create("one")).json
        (message,) = first["output"]
        turns = [
            {"role": "user", "content": "one"},
            reference_to(message["id"]),
            {"role": "user", "content": "two"},
        ]
        second = (await caller.create(turns)).json
        assert second["status"] == "completed"
        assert told(caller) == [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "Hello there."},
            {"role": "user", "content": "two"},
        ]
        listed = await items_before(caller, second)
        assert [item["type"] for item in listed] == ["message"] * 3
        assert listed[1]["id"] == message["id"]

    with_store(scenario)


def test_a_call_and_an_item_of_an_input_are_referred_to_as_well() -> None:
    async def scenario(caller: Caller) -> None:
        text = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
        caller.fleet.worker.texts = [text]
        tools = [{"type": "function", "name": "f", "strict": False}]
        first = (await caller.create("one", tools=tools)).json
        (call,) = first["output"]
        (question,) = await items_before(caller, first)
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "sun"}
        references = [reference_to(question["id"]), reference_to(call["id"])]
        second = (await caller.create([*references, result], tools=tools)).json
        listed = await items_before(caller, second)
        assert listed[:2] == [question, call]
        assert told(caller)[-3]["content"] == "one", "behind the description of the tools"

    with_store(scenario)


@pytest.mark.parametrize(
    "name", ["msg_1", "msg_req_0", "conv_1", "x", "msg_req_" + "0" * 400, "msg_req_*"]
)
def test_a_reference_to_what_is_not_stored_is_refused_by_place(name: str) -> None:
    async def scenario(caller: Caller) -> None:
        refused = await caller.create([{"role": "user", "content": "x"}, reference_to(name)])
        assert refused.error == "400 previous_response_not_found input[1].id"

    with_store(scenario)


@pytest.mark.parametrize("item", [{"type": "item_reference"}, reference_to("m") | {"role": "user"}])
def test_a_reference_is_a_name_and_nothing_else(item: dict[str, str]) -> None:
    async def scenario(caller: Caller) -> None:
        refused = await caller.create([item])
        assert (refused.status, refused.json["error"]["param"]) == (400, "input[0]")

    with_store(scenario)


def test_references_to_more_than_an_object_may_hold_are_refused() -> None:
    async def scenario(caller: Caller) -> None:
        first = (await caller.create("one")).json
        (message,) = first["output"]
        refused = await caller.create([reference_to(message["id"])] * 30)
        assert refused.status == 413

    with_store(scenario, StoreLimits(max_object_bytes=4000))


def test_copies_that_are_too_large_together_are_refused_before_they_are_made() -> None:
    async def scenario(caller: Caller) -> None:
        item = {"id": "msg_req_1_0", "role": "user", "content": "x" * 100_000}
        assert caller.fleet.gateway.store is not None
        stored = {"response": b'{"output": []}', "input": json.dumps([item]).encode()}
        await caller.fleet.gateway.store.write("acme", "resp_req_1", stored)
        tracemalloc.start()
        try:
            refused = await caller.create([reference_to(item["id"])] * 300)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert refused.status == 413
        assert peak_bytes < 10_000_000, "300 copies take 30 MB"

    with_store(scenario)


def test_a_gateway_without_a_store_refuses_references() -> None:
    async def scenario(fleet: Fleet) -> None:
        refused = await Caller(fleet).create([reference_to("msg_req_1")])
        assert refused.error == "400 unsupported_parameter input"

    simulate(scenario)


def test_a_conversation_takes_no_references() -> None:
    async def scenario(caller: Caller) -> None:
        body = {"items": [reference_to("msg_req_1")]}
        refused = await caller.call("POST", "/v1/conversations", body)
        assert refused.status == 400

    with_store(scenario)

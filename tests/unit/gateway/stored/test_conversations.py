"""Conversations: made, read, added to by responses, deleted."""

import asyncio
import json
from typing import Any

from openai.types.conversations import Conversation, ConversationItemList

from tests.unit.gateway.stored.clients import Caller, with_store

PATH = "/v1/conversations"


def texts(items: dict[str, Any]) -> list[str]:
    return [item["content"][0]["text"] for item in items["data"]]


def test_a_response_adds_its_input_and_its_output() -> None:
    async def scenario(caller: Caller) -> None:
        said = {"role": "user", "content": "one"}
        made = (await caller.call("POST", PATH, {"items": [said], "metadata": {"a": "b"}})).json
        Conversation.model_validate(made)
        first = (await caller.create("two", conversation=made["id"])).json
        assert first["conversation"] == {"id": made["id"]}
        background = await caller.create("three", conversation={"id": made["id"]}, background=True)
        assert background.status == 200
        await asyncio.sleep(5)
        told = json.loads(caller.fleet.tokenizer.encoded[-1].chat.messages_json)
        assert [turn["content"] for turn in told] == ["one", "two", "Hello there.", "three"]
        listed = (await caller.get(f"{PATH}/{made['id']}/items?order=asc")).json
        ConversationItemList.model_validate(listed)
        assert texts(listed) == ["one", "two", "Hello there.", "three", "Hello there."]

    with_store(scenario)


def test_items_are_added_fetched_and_deleted() -> None:
    async def scenario(caller: Caller) -> None:
        name = (await caller.call("POST", PATH)).json["id"]
        items = [{"role": "user", "content": text} for text in ("one", "two")]
        added = (await caller.call("POST", f"{PATH}/{name}/items", {"items": items})).json
        assert texts(added) == ["one", "two"]
        one = f"{PATH}/{name}/items/{added['first_id']}"
        assert (await caller.get(one)).json == added["data"][0]
        assert (await caller.call("DELETE", one)).json["id"] == name
        assert (await caller.get(one)).status == 404
        assert texts((await caller.get(f"{PATH}/{name}/items")).json) == ["two"]
        refused = await caller.call("POST", f"{PATH}/{name}/items", {"items": items * 11})
        assert refused.error == "400 invalid_value items"
        refused = await caller.call("POST", f"{PATH}/{name}/items", {"items": [{"role": "x"}]})
        assert refused.status == 400

    with_store(scenario)


def test_a_conversation_is_changed_and_deleted() -> None:
    async def scenario(caller: Caller) -> None:
        path = f"{PATH}/{(await caller.call('POST', PATH, {})).json['id']}"
        changed = (await caller.call("POST", path, {"metadata": {"k": "v"}})).json
        assert (await caller.get(path)).json == changed
        assert changed["metadata"] == {"k": "v"}
        assert (await caller.call("DELETE", path)).json["deleted"] is True
        assert (await caller.get(path)).status == 404
        name = path.rpartition("/")[2]
        assert (await caller.create(conversation=name)).status == 404
        refused = await caller.create(conversation=name, previous_response_id="resp_1")
        assert refused.error == "400 invalid_value conversation"

    with_store(scenario)

"""Messages through the real stack, with the unchanged client of Anthropic.

The demo model was taught no tools: what it calls is the grammar's doing.
"""

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from tests.e2e.conftest import ANSWER_TIMEOUT_S, Stack

MODEL = "baton-demo"
QUESTION: Any = {"role": "user", "content": "What is TTFT?"}
LOOK_UP: Any = {
    "name": "look_up",
    "description": "Looks a word up.",
    "input_schema": {
        "type": "object",
        "properties": {"word": {"type": "string", "enum": ["prefill", "decode"]}},
        "required": ["word"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[anthropic.Anthropic]:
    """Anthropic's client, whose base URL has no version in it."""
    with anthropic.Anthropic(
        base_url=stack.base_url.removesuffix("/v1"),
        api_key=stack.api_key,
        max_retries=0,
        timeout=ANSWER_TIMEOUT_S,
    ) as made:
        yield made


def test_a_message_is_the_same_streamed_and_whole(client: anthropic.Anthropic) -> None:
    fields: Any = {
        "model": MODEL,
        "max_tokens": 24,
        "system": "You explain words.",
        "messages": [QUESTION],
        "extra_body": {"temperature": 0},
    }
    whole = client.messages.create(**fields)
    with client.messages.stream(**fields) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_message()
    assert [(block.type, block.text) for block in streamed.content] == [
        (block.type, block.text) for block in whole.content
    ]
    assert streamed.stop_reason == whole.stop_reason
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    assert whole._request_id is not None
    assert whole.id == f"msg_{whole._request_id}"


def test_the_tokens_of_a_message_are_counted_before(client: anthropic.Anthropic) -> None:
    asked: Any = {"model": MODEL, "messages": [QUESTION], "tools": [LOOK_UP]}
    counted = client.messages.count_tokens(**asked)
    usage = client.messages.create(**asked, max_tokens=1).usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_a_tool_is_used_and_its_result_answered(client: anthropic.Anthropic) -> None:
    fields: Any = {"model": MODEL, "max_tokens": 64, "tools": [LOOK_UP]}
    one: Any = {"type": "any", "disable_parallel_tool_use": True}
    with client.messages.stream(**fields, messages=[QUESTION], tool_choice=one) as stream:
        message = stream.get_final_message()
    (block,) = message.content
    assert block.type == "tool_use"
    assert (block.name, message.stop_reason) == ("look_up", "tool_use")
    assert block.input["word"] in ("prefill", "decode")
    result: Any = {"type": "tool_result", "tool_use_id": block.id, "content": "the first step"}
    turns: Any = [
        QUESTION,
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [result]},
    ]
    none: Any = {"type": "none"}
    after = client.messages.create(**fields, messages=turns, tool_choice=none)
    assert [each.type for each in after.content] == ["text"]


def test_errors_are_those_that_the_client_knows(client: anthropic.Anthropic) -> None:
    fields: Any = {"max_tokens": 1, "messages": [QUESTION]}
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(model="no-such-model", **fields)
    assert missing.value.request_id is not None
    stranger = client.with_options(api_key="sk-wrong")
    with pytest.raises(anthropic.AuthenticationError):
        stranger.messages.create(model=MODEL, **fields)
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\].content\[0\].type"):
        image: Any = {"type": "image", "source": {"type": "url", "url": "https://a.example/b"}}
        turns: Any = [{"role": "user", "content": [image]}]
        client.messages.create(model=MODEL, max_tokens=1, messages=turns)

"""The compliance cases of Open Responses that a server of text and functions can pass.

Its cases with images, files, and OpenAI's own searches are refused by name (docs/clients.md).
"""

import json
from typing import Any

import httpx
import pytest
from openai.types import responses
from pydantic import TypeAdapter

from tests.e2e.conftest import ANSWER_TIMEOUT_S, Stack

# Fields that the specification's ResponseResource requires, null or not.
REQUIRED = {
    "id", "object", "created_at", "completed_at", "status", "incomplete_details", "model",
    "previous_response_id", "instructions", "output", "error", "tools", "tool_choice",
    "truncation", "parallel_tool_calls", "text", "top_p", "presence_penalty",
    "frequency_penalty", "top_logprobs", "temperature", "reasoning", "usage",
    "max_output_tokens", "max_tool_calls", "store", "background", "service_tier", "metadata",
    "safety_identifier", "prompt_cache_key",
}  # fmt: skip
NUMBERS = {"top_p", "temperature", "presence_penalty", "frequency_penalty", "top_logprobs"}
GET_WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {
        "type": "object",
        "properties": {
            "location": {
                "type": "string",
                "description": "The city and state, e.g. San Francisco, CA",
            }
        },
        "required": ["location"],
    },
}
EVENTS: TypeAdapter[Any] = TypeAdapter(responses.ResponseStreamEvent)


def message(role: str, content: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content}


def post(stack: Stack, **fields: Any) -> httpx.Response:
    return httpx.post(
        f"{stack.base_url}/responses",
        json={"model": "gpt-4o-mini", **fields},
        headers={"Authorization": f"Bearer {stack.api_key}"},
        timeout=ANSWER_TIMEOUT_S,
    )


def checked(response: dict[str, Any]) -> dict[str, Any]:
    """A response that has the form of the specification."""
    assert response.keys() >= REQUIRED
    assert all(isinstance(response[name], int | float) for name in NUMBERS)
    assert response["object"] == "response"
    responses.Response.model_validate(response)
    return response


def answered(stack: Stack, **fields: Any) -> dict[str, Any]:
    """The response of a request that is completed with output."""
    answer = post(stack, **fields)
    assert answer.status_code == 200, answer.text
    response = checked(answer.json())
    assert (response["status"], bool(response["output"])) == ("completed", True)
    return response


def events_of(stack: Stack, **fields: Any) -> list[dict[str, Any]]:
    """The events of a stream, each of a known form and under its own name."""
    parts = post(stack, stream=True, **fields).text.split("\n\n")
    lines = [part.split("\n") for part in parts if part.startswith("event: ")]
    events = [json.loads(data.removeprefix("data: ")) for _, data in lines]
    assert [name.removeprefix("event: ") for name, _ in lines] == [e["type"] for e in events]
    for event in events:
        EVENTS.validate_python(event)
    assert checked(events[-1]["response"])["status"] == "completed"
    return events


@pytest.mark.parametrize(
    "turns",
    [
        [message("user", "Say hello in exactly 3 words.")],
        [message("system", "You are a pirate."), message("user", "Say hello.")],
        [
            message("user", "My name is Alice."),
            message("assistant", "Hello Alice! How can I help you today?"),
            message("user", "What is my name?"),
        ],
    ],
    ids=["basic", "system-prompt", "multi-turn"],
)
def test_a_conversation_is_answered(stack: Stack, turns: list[dict[str, Any]]) -> None:
    (item,) = answered(stack, input=turns)["output"]
    assert (item["type"], item["role"]) == ("message", "assistant")


def test_a_stream_has_events_of_the_specified_forms(stack: Stack) -> None:
    events = events_of(stack, input=[message("user", "Count from 1 to 5.")])
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_a_function_is_called_whole_and_streamed(stack: Stack) -> None:
    asked = [message("user", "What's the weather like in San Francisco?")]
    fields = {"input": asked, "tools": [GET_WEATHER]}
    whole = answered(stack, **fields)
    assert {item["type"] for item in whole["output"]} == {"function_call"}
    kinds = {
        (event["type"], event.get("item", {}).get("type")) for event in events_of(stack, **fields)
    }
    assert kinds >= {
        ("response.output_item.added", "function_call"),
        ("response.function_call_arguments.delta", None),
        ("response.function_call_arguments.done", None),
        ("response.output_item.done", "function_call"),
    }


def test_the_result_of_a_call_is_answered_without_its_tools(stack: Stack) -> None:
    named = {"type": "function", "name": "get_weather"}
    text = "Use the weather tool to get the temperature in San Francisco."
    first = answered(stack, input=text, tools=[GET_WEATHER], tool_choice=named)
    (call,) = first["output"]
    assert call["type"] == "function_call"
    output = "64 degrees and clear"
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": output}
    answered(stack, previous_response_id=first["id"], input=[result])


def test_a_response_is_gone_on_from_by_its_name(stack: Stack) -> None:
    first = answered(stack, input="Remember this code word: papaya. Reply with only OK.")
    question = "What code word did I ask you to remember?"
    second = answered(stack, previous_response_id=first["id"], input=question)
    assert second["previous_response_id"] == first["id"]
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="},
        {
            "type": "input_file",
            "filename": "a.pdf",
            "file_data": "data:application/pdf;base64,JVBE",
        },
    ],
    ids=["image", "file"],
)
def test_what_is_not_text_is_refused_by_place(stack: Stack, part: dict[str, str]) -> None:
    content = [{"type": "input_text", "text": "What is this?"}, part]
    refused = post(stack, input=[message("user", content)])
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported_content")

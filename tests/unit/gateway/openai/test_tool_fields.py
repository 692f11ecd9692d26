"""Tools of chat completions: which requests are taken, and which are refused by name."""

import json
from typing import Any

import msgspec
import pytest

from baton.wire.failures import InvalidRequest
from services.gateway.openai import chat
from services.gateway.openai.generation import ChatMessages, GenerationRequest, Tools

CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
F = {"type": "function", "function": {"name": "f", "parameters": CITY, "strict": True}}
G = {"type": "function", "function": {"name": "g", "description": "Looks."}}
HI = [{"role": "user", "content": "hi"}]


def prompt_of(**fields: Any) -> ChatMessages:
    body = {"model": "m", "messages": HI, **fields}
    prompt = chat.parse(json.dumps(body).encode()).prompt
    assert isinstance(prompt, ChatMessages)
    return prompt


def tools_of(**fields: Any) -> Tools:
    tools = prompt_of(tools=[F, G], **fields).tools
    assert tools is not None
    return tools


def refusal(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        prompt_of(**fields)
    return caught.value


def test_functions_are_read_and_passed_on_to_the_template() -> None:
    tools = tools_of()
    assert [(each.name, each.is_strict) for each in tools.functions] == [("f", True), ("g", False)]
    assert json.loads(tools.functions[0].parameters_json) == CITY
    assert json.loads(tools.tools_json)[0]["function"]["parameters"] == CITY
    assert (tools.is_required, tools.is_parallel) == (False, True)


def test_each_choice_of_tools_is_read() -> None:
    named = {"type": "function", "function": {"name": "g"}}
    assert prompt_of(tools=[F], tool_choice="none").tools is None
    assert not tools_of(tool_choice="auto", parallel_tool_calls=False).is_parallel
    assert tools_of(tool_choice="required").is_required
    only = tools_of(tool_choice=named)
    assert (only.is_named, [each.name for each in only.functions]) == (True, ["g"])
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
    some = tools_of(tool_choice=allowed)
    assert (some.is_required, some.is_named, len(some.functions)) == (True, False, 1)


@pytest.mark.parametrize(
    ("fields", "reason", "param"),
    [
        ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
        ({"tools": [{"type": "function"}]}, "invalid_value", "tools[0].function"),
        ({"tools": [{"type": "custom"}]}, "unsupported_parameter", "tools[0].type"),
        ({"tools": [F, F]}, "invalid_value", "tools[1].function.name"),
        ({"tools": [F] * 129}, "invalid_value", "tools"),
        (
            {
                "tools": [
                    {"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}
                ]
            },
            "invalid_value",
            "tools[0].function.parameters",
        ),
        (
            {
                "tools": [
                    {"type": "function", "function": {"name": "f", "parameters": {"x-guidance": 5}}}
                ]
            },
            "invalid_value",
            "tools[0].function.parameters",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "invalid_value",
            "tools[0].function.name",
        ),
        (
            {"tools": [F], "tool_choice": {"type": "function", "function": {"name": "h"}}},
            "invalid_value",
            "tool_choice.function.name",
        ),
        ({"tools": [F], "use_beam_search": True}, "unsupported_parameter", "tools"),
    ],
)
def test_tools_are_refused_by_name(fields: dict[str, Any], reason: str, param: str) -> None:
    error = refusal(**fields)
    assert (error.reason, error.param) == (reason, param)


def called(arguments: str, **changes: Any) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call], **changes}


def test_earlier_calls_and_results_are_turns_of_the_conversation() -> None:
    result = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "sun"}]}
    prompt = prompt_of(messages=[*HI, called('{"city": "Paris"}'), result])
    _, answer, last = json.loads(prompt.messages_json)
    assert answer["content"] == ""
    assert answer["tool_calls"][0]["function"] == {"name": "f", "arguments": {"city": "Paris"}}
    assert last == {"role": "tool", "tool_call_id": "c1", "content": "sun"}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (called("[1]"), "messages[0].tool_calls[0].function.arguments"),
        (called("{"), "messages[0].tool_calls[0].function.arguments"),
        (called("{}", role="user"), "messages[0].tool_calls"),
        ({"role": "tool", "content": "x"}, "messages[0].tool_call_id"),
    ],
)
def test_calls_and_results_are_refused_by_place(message: dict[str, Any], param: str) -> None:
    assert refusal(messages=[message]).param == param


def test_what_clients_add_to_an_answer_may_come_back_and_says_nothing() -> None:
    plain = called('{"city": "Paris"}')
    added = called('{"city": "Paris"}', provider_specific_fields={"refusal": None})
    (call,) = added["tool_calls"]
    call["provider_specific_fields"] = {}
    call["function"] = {**call["function"], "parsed_arguments": {"city": "Paris"}}
    parsed = {"role": "assistant", "content": "{}", "parsed": {"name": "Ann"}}
    assert prompt_of(messages=[added, parsed]) == prompt_of(
        messages=[plain, {"role": "assistant", "content": "{}"}]
    )


def test_a_request_with_tools_comes_whole_from_the_process_that_parses_large_bodies() -> None:
    body = json.dumps({"model": "m", "messages": HI, "tools": [F, G], "tool_choice": "required"})
    request = chat.parse(body.encode())
    encoded = msgspec.msgpack.encode(request)
    assert msgspec.msgpack.decode(encoded, type=GenerationRequest) == request

"""Requests in Anthropic's form: conversation, tools, thinking, and what is refused."""

import json
from typing import Any

import pytest

from baton.wire.failures import InvalidRequest
from services.gateway.anthropic import messages
from services.gateway.openai.generation import ChatMessages, GenerationRequest, Tools

HI = {"role": "user", "content": "hi"}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
F = {"name": "f", "description": "Looks.", "input_schema": CITY}
CACHED = {"cache_control": {"type": "ephemeral"}}
CALL = {"type": "tool_use", "id": "c1", "name": "f", "input": {"city": "Paris"}}
RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": "sun"}


def request_of(**fields: Any) -> GenerationRequest:
    body = {"model": "m", "max_tokens": 9, "messages": [HI], **fields}
    return messages.parse(json.dumps(body).encode())


def prompt_of(**fields: Any) -> ChatMessages:
    prompt = request_of(**fields).prompt
    assert isinstance(prompt, ChatMessages)
    return prompt


def turns_of(*given: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = json.loads(prompt_of(messages=given, **fields).messages_json)
    return turns


def tools_of(**fields: Any) -> Tools:
    tools = prompt_of(tools=[F], **fields).tools
    assert tools is not None
    return tools


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **more}


def says(role: str, *blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


def refusal(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        request_of(**fields)
    return caught.value


def test_the_system_prompt_is_text_or_blocks_and_comes_first() -> None:
    asked = {"role": "user", "content": "hi"}
    for system in ("Be brief.", [text("Be brief.", **CACHED)]):
        assert turns_of(HI, system=system) == [{"role": "system", "content": "Be brief."}, asked]
    two = turns_of(HI, system=[text("a"), text("b")])
    assert two[0]["content"] == "a\nb"


def test_calls_and_thoughts_belong_to_the_answer_and_results_come_before_the_users_text() -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    hidden = {"type": "redacted_thinking", "data": "x"}
    answer = says("assistant", thought, hidden, text("I look."), CALL)
    other = {**RESULT, "content": [text("rain")], "is_error": False, **CACHED}
    turns = turns_of(HI, answer, says("user", text("And?"), RESULT, other))
    assert [turn["role"] for turn in turns] == ["user", "assistant", "tool", "tool", "user"]
    assert turns[1] == {
        "role": "assistant",
        "content": "I look.",
        "reasoning_content": "Hm.",
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "f", "arguments": {"city": "Paris"}},
            }
        ],
    }
    assert turns[2] == {"role": "tool", "tool_call_id": "c1", "content": "sun"}
    assert (turns[3]["content"], turns[4]["content"]) == ("rain", "And?")
    assert prompt_of(messages=[HI, answer, says("user", RESULT)]).has_calls


def test_messages_of_one_role_behind_each_other_are_one_turn() -> None:
    answer, ask = {"role": "assistant", "content": "yes"}, {"role": "user", "content": "you?"}
    turns = turns_of(HI, ask, answer, says("user", text("good")))
    assert [turn["content"] for turn in turns] == ["hi\nyou?", "yes", "good"]


def test_an_answer_goes_on_with_a_last_message_of_the_assistant() -> None:
    begun = prompt_of(messages=[HI, {"role": "assistant", "content": "The answer is ("}])
    assert (begun.continues_final, begun.adds_generation_prompt) == (True, False)
    fresh = prompt_of()
    assert (fresh.continues_final, fresh.adds_generation_prompt) == (False, True)


def test_tools_are_functions_whose_schema_has_another_name() -> None:
    tools = tools_of()
    assert json.loads(tools.tools_json) == [
        {
            "type": "function",
            "function": {"name": "f", "description": "Looks.", "parameters": CITY},
        }
    ]
    assert (tools.is_required, tools.is_parallel) == (False, True)
    long = {**F, "name": "n" * 128, "type": "custom", "eager_input_streaming": True, **CACHED}
    assert prompt_of(tools=[long]).tools is not None


def test_a_choice_of_tools_says_which_calls_are_made() -> None:
    assert tools_of(tool_choice={"type": "any"}).is_required
    named = tools_of(tool_choice={"type": "tool", "name": "f"})
    assert (named.is_required, named.is_named) == (True, True)
    single = {"type": "auto", "disable_parallel_tool_use": True}
    assert not tools_of(tool_choice=single).is_parallel
    assert prompt_of(tools=[F], tool_choice={"type": "none"}).tools is None


def test_thoughts_are_asked_for_and_shown_only_where_the_client_wants_them() -> None:
    def told(**fields: Any) -> tuple[dict[str, Any], bool]:
        request = request_of(**fields)
        assert isinstance(request.prompt, ChatMessages)
        return json.loads(request.prompt.template_kwargs_json), request.shows_reasoning

    off, on = {"enable_thinking": False, "thinking": False}, {"enable_thinking": True}
    assert told() == (off, False)
    assert told(thinking={"type": "disabled"}) == (off, False)
    enabled = {"type": "enabled", "budget_tokens": 1024}
    assert told(thinking=enabled) == ({**on, "thinking": True}, True)
    assert told(thinking={**enabled, "display": "omitted"})[1] is False
    adaptive = told(thinking={"type": "adaptive"}, output_config={"effort": "low"})
    assert adaptive == ({**on, "thinking": True, "reasoning_effort": "low"}, True)


def test_sampling_and_format_are_those_of_the_other_endpoints() -> None:
    schema = {"type": "json_schema", "schema": CITY}
    request = request_of(
        temperature=0.5, top_p=0.9, top_k=40, stop_sequences=["END"], stream=True,
        output_config={"format": schema}, metadata={"user_id": "u"}, service_tier="auto", **CACHED,
    )  # fmt: skip
    assert (request.temperature, request.top_p, request.rules.top_k) == (0.5, 0.9, 40)
    assert (request.stop, request.includes_stop, request.stream) == (("END",), True, True)
    assert request.rules.structure is not None
    assert json.loads(request.rules.structure.text) == CITY
    assert (request.max_tokens, request.endpoint) == (9, "messages")


def test_a_request_for_the_number_of_tokens_needs_no_limit() -> None:
    body = json.dumps({"model": "m", "messages": [HI], "tools": [F]}).encode()
    request = messages.parse_to_count(body)
    assert (request.endpoint, request.max_tokens) == ("messages.count_tokens", None)


IMAGE = {"type": "image", "source": {"type": "url", "url": "x"}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [says("user", text("a"), IMAGE)]}, "messages[0].content[1].type"),
        ({"messages": [says("user", {"type": "document"})]}, "messages[0].content[0].type"),
        ({"messages": [says("user", CALL)]}, "messages[0].content[0].type"),
        ({"messages": [says("assistant", RESULT)]}, "messages[0].content[0].type"),
        (
            {"messages": [says("user", {**RESULT, "content": [IMAGE]})]},
            "messages[0].content[0].content[0].type",
        ),
        ({"messages": [says("assistant", {**CALL, "input": "x"})]}, "messages[0].content[0].input"),
        ({"messages": [says("user", text("a")) | {"x": 1}]}, "messages[0].x"),
        ({"messages": [says("user", *[text("a")] * 257)]}, "messages[0].content"),
        ({"messages": [says("user")]}, "messages[0].content"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{**F, "input_schema": {"type": "array"}}]}, "tools[0].input_schema"),
        ({"tools": [F], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name"),
        ({"tools": [F], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"n": 2}, "n"),
    ],
)
def test_a_field_that_cannot_be_served_is_refused_by_name(
    fields: dict[str, Any], param: str
) -> None:
    assert refusal(**fields).param == param

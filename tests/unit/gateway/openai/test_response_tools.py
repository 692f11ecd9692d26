"""Tools of responses: the request's functions and items, and the answer's items and events."""

import json
from typing import Any

import pytest

from baton.wire.failures import InvalidRequest
from services.gateway.openai import responses
from services.gateway.openai.generation import (
    CallDelta,
    ChatMessages,
    Delta,
    FinishReason,
    GenerationRequest,
    Identity,
    Usage,
)
from services.gateway.openai.responses_answer import ResponsesAnswer

CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
F = {"type": "function", "name": "f", "description": "Looks.", "parameters": CITY}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "status": "completed"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "sun"}
HI = {"role": "user", "content": "hi"}


def request_of(**fields: Any) -> GenerationRequest:
    return responses.parse(json.dumps({"model": "m", "input": "hi", **fields}).encode())


def prompt_of(**fields: Any) -> ChatMessages:
    prompt = request_of(**fields).prompt
    assert isinstance(prompt, ChatMessages)
    return prompt


def refusal(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        request_of(**fields)
    return caught.value


def test_functions_are_strict_unless_they_say_otherwise_and_are_repeated() -> None:
    request = request_of(tools=[F, {**F, "name": "g", "strict": False}], tool_choice="required")
    assert isinstance(request.prompt, ChatMessages)
    tools = request.prompt.tools
    assert tools is not None
    assert [(each.name, each.is_strict) for each in tools.functions] == [("f", True), ("g", False)]
    assert tools.is_required
    shown = json.loads(tools.tools_json)[0]
    assert shown == {
        "type": "function",
        "function": {"name": "f", "description": "Looks.", "parameters": CITY},
    }
    assert request.repeated["tools"][0] == {**F, "strict": True}
    assert request.repeated["tool_choice"] == "required"
    only = prompt_of(tools=[F], tool_choice={"type": "function", "name": "f"}).tools
    assert only is not None
    assert only.is_named
    allowed = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "f"}],
    }
    some = prompt_of(tools=[F], tool_choice=allowed).tools
    assert some is not None
    assert not some.is_required


def test_calls_join_the_answer_before_them_and_results_follow() -> None:
    second = {**CALL, "call_id": "c2", "arguments": '{"city": "Paris"}'}
    said = {"role": "assistant", "content": "I look."}
    turns = json.loads(prompt_of(input=[HI, said, CALL, second, RESULT]).messages_json)
    assert [turn["role"] for turn in turns] == ["user", "assistant", "tool"]
    assert [call["id"] for call in turns[1]["tool_calls"]] == ["c1", "c2"]
    assert turns[1]["tool_calls"][1]["function"]["arguments"] == {"city": "Paris"}
    assert turns[2] == {"role": "tool", "tool_call_id": "c1", "content": "sun"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [F], "tool_choice": {"type": "function", "name": "h"}}, "tool_choice.name"),
        ({"tools": [F], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.tools"),
        ({"input": [{**CALL, "arguments": "["}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        ({"input": [{**RESULT, "output": 3}]}, "input[0].output"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
    ],
)
def test_tools_and_items_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert refusal(**fields).param == param


def answer_of(request: GenerationRequest) -> ResponsesAnswer:
    return ResponsesAnswer(Identity("r1", 1, "m", "f" * 64, 1), request)


DELTAS = [
    Delta(0, "I look."),
    Delta(0, "", calls=(CallDelta(0, "", "c1", "f"), CallDelta(0, '{"a"'))),
    Delta(0, "", calls=(CallDelta(0, ": 1}"), CallDelta(1, "{}", "c2", "f"))),
    Delta(0, "", FinishReason.TOOL_CALLS),
]
USAGE = Usage(3, 0, 5)


def events_of(answer: ResponsesAnswer, deltas: list[Delta]) -> list[dict[str, Any]]:
    stream = answer.opening()
    for delta in deltas:
        stream += answer.deltas([delta])
    stream += b"".join(answer.closing(USAGE))
    return [json.loads(event.split(b"\ndata: ")[1]) for event in stream.split(b"\n\n") if event]


def test_each_item_has_its_events_in_the_official_order() -> None:
    events = events_of(answer_of(request_of(tools=[F])), DELTAS)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.delta",
        "function_call_arguments.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta",
        "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert [event["output_index"] for event in done] == [0, 1, 2]
    assert [event["item"] for event in done] == events[-1]["response"]["output"]
    assert done[1]["item"] == {
        "id": "fc_r1_0",
        "type": "function_call",
        "status": "completed",
        "call_id": "c1",
        "name": "f",
        "arguments": '{"a": 1}',
    }


def test_the_whole_response_is_that_of_the_stream() -> None:
    request = request_of(tools=[F])
    streamed = events_of(answer_of(request), DELTAS)[-1]["response"]
    answer = answer_of(request)
    answer.collect(DELTAS)
    assert json.loads(b"".join(answer.whole(USAGE))) == streamed


def test_without_tools_the_message_is_open_from_the_beginning() -> None:
    answer = answer_of(request_of())
    assert b"content_part.added" in answer.opening()
    assert b"content_part.added" not in answer_of(request_of(tools=[F])).opening()
    events = events_of(answer_of(request_of(tools=[F])), [Delta(0, "", FinishReason.STOP)])
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["message"]


def test_a_call_that_is_cut_is_incomplete() -> None:
    deltas = [*DELTAS[:2], Delta(0, "", FinishReason.LENGTH)]
    response = events_of(answer_of(request_of(tools=[F])), deltas)[-1]["response"]
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}


def test_a_choice_is_repeated_as_it_was_made() -> None:
    only = {"type": "function", "name": "f"}
    assert request_of(tools=[F], tool_choice=only).repeated["tool_choice"] == only

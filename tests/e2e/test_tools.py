"""Tool calls through the real stack, with the unchanged OpenAI client.

`look_up` fits no question that the demo model knows: where it is called, a grammar makes it so.
"""

import json
from typing import Any

from tests.e2e.conftest import Stack

MODEL = "baton-demo"
QUESTION = {"role": "user", "content": "What is TTFT?"}
LOOK_UP = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks a word up.",
        "parameters": {
            "type": "object",
            "properties": {
                "word": {"type": "string", "enum": ["prefill", "decode"]},
                "depth": {"type": "integer", "minimum": 0, "maximum": 9},
            },
            "required": ["word", "depth"],
            "additionalProperties": False,
        },
    },
}
GET_WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get current temperature for a given location.",
        "parameters": {
            "type": "object",
            "properties": {
                "location": {
                    "type": "string",
                    "description": "City and country, e.g. Paris, France",
                }
            },
            "required": ["location"],
            "additionalProperties": False,
        },
    },
}
FIELDS: dict[str, Any] = {
    "model": MODEL,
    "tools": [LOOK_UP],
    "parallel_tool_calls": False,
    "temperature": 1.0,
    "seed": 7,
}


def is_right(arguments: str) -> bool:
    """The arguments follow the function's schema."""
    found = json.loads(arguments)
    return found["word"] in ("prefill", "decode") and found["depth"] in range(10)


def test_a_required_call_is_made_and_its_result_answered(stack: Stack) -> None:
    create = stack.client().chat.completions.create
    answer = create(messages=[QUESTION], tool_choice="required", **FIELDS)
    message = answer.choices[0].message
    assert (answer.choices[0].finish_reason, message.content) == ("tool_calls", None)
    (call,) = message.tool_calls
    assert call.function.name == "look_up"
    assert is_right(call.function.arguments)
    result = {"role": "tool", "tool_call_id": call.id, "content": "the first of two steps"}
    turns = [QUESTION, message.model_dump(exclude_none=True), result]
    after = create(messages=turns, max_tokens=8, tool_choice="none", **FIELDS)
    assert after.choices[0].message.tool_calls is None
    alone = create(model=MODEL, messages=[QUESTION], max_tokens=1)
    assert after.usage.prompt_tokens > alone.usage.prompt_tokens + 20, "call and result are told"


def test_a_streamed_call_of_a_named_function_is_the_same(stack: Stack) -> None:
    named = {"type": "function", "function": {"name": "look_up"}}
    create = stack.client().chat.completions.create
    whole = create(messages=[QUESTION], tool_choice=named, **FIELDS).choices[0]
    chunks = list(create(messages=[QUESTION], tool_choice=named, stream=True, **FIELDS))
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert [call.function.name for call in calls if call.id] == ["look_up"]
    arguments = "".join(call.function.arguments for call in calls)
    assert arguments == whole.message.tool_calls[0].function.arguments
    assert is_right(arguments)
    assert (whole.finish_reason, chunks[-1].choices[0].finish_reason) == ("stop", "stop")


def test_a_response_calls_and_goes_on_from_the_result(stack: Stack) -> None:
    tool = {"type": "function", **LOOK_UP["function"]}
    create = stack.client().responses.create
    fields: dict[str, Any] = {"model": MODEL, "tools": [tool], "temperature": 1.0}
    first = create(input=[QUESTION], tool_choice="required", parallel_tool_calls=False, **fields)
    (call,) = first.output
    assert (call.type, call.name, first.status) == ("function_call", "look_up", "completed")
    assert is_right(call.arguments)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "a step"}
    turns = [QUESTION, call.model_dump(exclude_none=True), result]
    after = create(input=turns, max_output_tokens=16, tool_choice="none", **fields)
    assert after.output[0].type == "message"
    with stack.client().responses.stream(
        input=[QUESTION], tool_choice="required", parallel_tool_calls=False, **fields
    ) as stream:
        kinds = [event.type for event in stream]
    assert "response.function_call_arguments.delta" in kinds
    assert kinds[-1] == "response.completed"


def test_an_answer_with_tools_and_a_format_is_a_call_or_has_the_format(stack: Stack) -> None:
    schema = {**LOOK_UP["function"]["parameters"], "x-guidance": {"whitespace_flexible": False}}
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": schema}}
    answer = stack.client().chat.completions.create(
        messages=[QUESTION], response_format=form, max_tokens=200, **FIELDS
    )
    message = answer.choices[0].message
    calls = message.tool_calls or ()
    assert is_right(calls[0].function.arguments if calls else message.content)
    assert answer.usage.completion_tokens_details.reasoning_tokens == 0


def test_the_card_of_a_model_says_that_it_calls_tools(stack: Stack) -> None:
    card = stack.client().models.retrieve(MODEL).model_dump()
    assert card["capabilities"]["tools"]
    assert (card["tool_syntax"], card["reasoning_syntax"]) == ("hermes", None)
    assert card in [each.model_dump() for each in stack.client().models.list().data]


def test_the_model_calls_by_itself_and_tells_the_result(stack: Stack) -> None:
    create = stack.client().chat.completions.create
    question = {"role": "user", "content": "What is the weather in Paris?"}
    first = create(model=MODEL, messages=[question], tools=[GET_WEATHER]).choices[0]
    assert first.finish_reason == "tool_calls"
    (call,) = first.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", '{"location": "Paris"}')
    result = {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"}
    turns = [question, first.message.model_dump(exclude_none=True), result]
    after = create(model=MODEL, messages=turns, tools=[GET_WEATHER]).choices[0]
    assert after.message.content == "The weather in Paris is 21 degrees."
    assert after.finish_reason == "stop"


def test_two_cities_are_two_calls_and_stream_so(stack: Stack) -> None:
    question = {"role": "user", "content": "What is the weather in Paris and London?"}
    chunks = stack.client().chat.completions.create(
        model=MODEL, messages=[question], tools=[GET_WEATHER], stream=True
    )
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    pieces = [(call.index, call.function.arguments or "") for call in calls]
    arguments = ["".join(text for at, text in pieces if at == index) for index in (0, 1)]
    assert [json.loads(each)["location"] for each in arguments] == ["Paris", "London"]


def test_a_question_that_needs_no_function_is_answered(stack: Stack) -> None:
    create = stack.client().chat.completions.create
    plain = create(model=MODEL, messages=[QUESTION]).choices[0].message.content
    with_tools = create(model=MODEL, messages=[QUESTION], tools=[GET_WEATHER]).choices[0]
    assert (with_tools.finish_reason, with_tools.message.content) == ("stop", plain)

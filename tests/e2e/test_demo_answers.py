"""The demo model ends by itself: ten questions for a function and ten schemas, as in a quick start.

They are asked at the default temperature, with a limit of tokens that is far beyond a right answer.
"""

import json
from typing import Any

from jsonschema import validate

from tests.e2e.conftest import Stack

MODEL = "baton-demo"
MAX_TOKENS = 400
TEXT, NUMBER, TEXTS = (
    {"type": "string"},
    {"type": "integer"},
    {"type": "array", "items": {"type": "string"}},
)


def of(**properties: Any) -> dict[str, Any]:
    names = list(properties)
    return {
        "type": "object",
        "properties": properties,
        "required": names,
        "additionalProperties": False,
    }


def tool(name: str, about: str, **properties: Any) -> dict[str, Any]:
    function = {"name": name, "description": about, "parameters": of(**properties)}
    return {"type": "function", "function": function}


WEATHER = tool("get_weather", "Get the current weather in a given location", location=TEXT)
TIME = tool("get_current_time", "Returns the local time", city=TEXT)
SUM = tool("add", "Add two numbers", a=NUMBER, b=NUMBER)
CALLS = [
    ("What is the weather in Paris?", WEATHER),
    ("What's the weather like in Tokyo today?", WEATHER),
    ("How warm is it in Berlin?", WEATHER),
    ("Is it raining in London?", WEATHER),
    ("Tell me the weather in Lima.", WEATHER),
    ("What time is it in Rome?", TIME),
    ("Tell me the time in Cairo.", TIME),
    ("How late is it in Oslo?", TIME),
    ("What is 17 plus 25?", SUM),
    ("Add 3 and 4.", SUM),
]
SCHEMAS = [
    ("Jane is 54 years old.", of(name=TEXT, age=NUMBER)),
    ("Alice and Bob meet on Monday.", of(date=TEXT, participants=TEXTS)),
    ("The capital of France is Paris.", of(country=TEXT, capital=TEXT)),
    ("What is TTFT?", of(answer=TEXT)),
    ("Dune is a novel of 1965.", of(title=TEXT, year=NUMBER)),
    ("It is 21 degrees in Rome.", of(city=TEXT, degrees={"type": "number"})),
    ("Tom is a member.", of(name=TEXT, is_member={"type": "boolean"})),
    ("I liked it a lot.", of(sentiment={"enum": ["positive", "negative"]}, words=TEXTS)),
    ("Write to Ann.", of(person=of(name=TEXT, email=TEXT), tags=TEXTS)),
    ("Solve 8x + 7 = 23.", of(steps={"type": "array", "items": of(output=TEXT)}, answer=TEXT)),
]


def test_ten_calls_end_by_themselves(stack: Stack) -> None:
    create, ended, called = stack.client().chat.completions.create, [], []
    for question, function in CALLS:
        messages = [{"role": "user", "content": question}]
        answer = create(
            model=MODEL, messages=messages, tools=[function], max_tokens=MAX_TOKENS, seed=1
        )
        choice = answer.choices[0]
        ended.append(choice.finish_reason != "length")
        for call in choice.message.tool_calls or ():
            validate(json.loads(call.function.arguments), function["function"]["parameters"])
            called.append(question)
    assert all(ended), [CALLS[at][0] for at, has_ended in enumerate(ended) if not has_ended]
    assert len(set(called)) >= 9, called


def test_nine_of_ten_objects_end_by_themselves(stack: Stack) -> None:
    create, ended = stack.client().chat.completions.create, []
    for question, schema in SCHEMAS:
        form = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}
        messages = [{"role": "user", "content": question}]
        answer = create(
            model=MODEL, messages=messages, response_format=form, max_tokens=MAX_TOKENS, seed=1
        )
        choice = answer.choices[0]
        ended.append(choice.finish_reason == "stop")
        if ended[-1]:
            validate(json.loads(choice.message.content), schema)
    assert sum(ended) >= 9, [SCHEMAS[at][0] for at, has_ended in enumerate(ended) if not has_ended]

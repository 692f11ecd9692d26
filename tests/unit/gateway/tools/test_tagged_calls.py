"""Calls with arguments between tags, read in pieces of any size."""

import json
from typing import Any

import pytest

from services.gateway.openai.generation import Function, Tools
from services.gateway.tools.call_grammar import call_rules
from services.gateway.tools.call_syntax import SYNTAXES
from services.gateway.tools.tagged_calls import TaggedCallParser
from services.gateway.tools.tagged_schema import json_of, properties_of

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "more": {"anyOf": [{"type": "object"}, {"type": "null"}]},
    },
}
FUNCTIONS = (Function("f", json.dumps(SCHEMA)), Function("g", ""))
VALUES = {"city": "5 <b>\n", "days": 3, "more": {"a": [1]}}
CALLS = {
    "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=city>\n5 <b>\n\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n<parameter=more>\n"
    '{"a": [1]}\n</parameter>\n</function>\n</tool_call>',
    "glm45": "<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>5 <b>\n\n</arg_value>\n"
    "<arg_key>days</arg_key><arg_value>3</arg_value>\n<arg_key>more</arg_key>\n<arg_value>"
    '{"a": [1]}</arg_value>\n</tool_call>',
}
EMPTY = {
    "qwen3_coder": "<tool_call>\n<function=g>\n</function>\n</tool_call>",
    "glm45": "<tool_call>g</tool_call>",
}


def read(name: str, pieces: list[str]) -> tuple[str, list[tuple[str, Any]]]:
    parser = TaggedCallParser(SYNTAXES[name], str, FUNCTIONS)
    found = [*map(parser.feed, pieces), parser.flush()]
    calls: list[list[str]] = []
    for delta in (delta for _, deltas in found for delta in deltas):
        if delta.call_id:
            calls.append([delta.name, ""])
        calls[delta.number][1] += delta.arguments
    return "".join(text for text, _ in found), [(name, json.loads(text)) for name, text in calls]


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_read_wherever_their_text_is_cut(name: str) -> None:
    text = f"I look < it up.\n\n{CALLS[name]}\n{EMPTY[name]}"
    expected = ("I look < it up.", [("f", VALUES), ("g", {})])
    for size in (1, 2, 3, 7, 1000):
        assert read(name, [text[at : at + size] for at in range(0, len(text), size)]) == expected
    for cut in range(len(text)):
        assert read(name, [text[:cut], text[cut:]]) == expected


@pytest.mark.parametrize("text", ["Hello.\n", "<tool_cal", "a < b", " \n", "<tool_call>\n<func"])
def test_text_without_calls_comes_out_as_it_is(text: str) -> None:
    assert read("qwen3_coder", [text]) == (text, [])
    assert read("qwen3_coder", list(text)) == (text, [])


def test_what_is_no_call_is_text() -> None:
    text = f"Not <tool_call>{{}} and <tool_call>\n<fun> {EMPTY['qwen3_coder']}"
    expected = ("Not <tool_call>{} and <tool_call>\n<fun>", [("g", {})])
    for pieces in ([text], list(text)):
        assert read("qwen3_coder", pieces) == expected


def test_a_call_without_its_end_is_whole() -> None:
    cut = CALLS["qwen3_coder"].partition("</function>")[0]
    assert read("qwen3_coder", list(cut)) == ("", [("f", VALUES)])


@pytest.mark.parametrize(
    ("value", "schema", "written"),
    [
        ("5", {"type": "string"}, '"5"'),
        ("5", {"type": "integer"}, "5"),
        ("five", {"type": "integer"}, '"five"'),
        ("True", {"type": "boolean"}, "true"),
        ("null", {"type": ["string", "null"]}, "null"),
        ("5", {"type": ["string", "null"]}, '"5"'),
        ("5", {"type": "number"}, "5"),
        ("a", {"enum": ["a", "b"]}, '"a"'),
        ("2", {"enum": [1, 2]}, "2"),
        ('"a"', {"enum": ["a"]}, '"\\"a\\""'),
        ("[1]", None, "[1]"),
        ("text", True, '"text"'),
    ],
)
def test_a_value_is_text_unless_its_schema_admits_what_it_is(
    value: str, schema: Any, written: str
) -> None:
    assert json_of(value, schema) == written


@pytest.mark.parametrize("value", ['{"x": 1}', "null"])
@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/Point"},
        {"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}]},
        {"anyOf": [{"$ref": "#/$defs/Either"}, {"type": "string"}]},
        {"anyOf": [{"$ref": "#/$defs/Loop"}, {"type": "null"}]},
        {"$ref": "#/$defs/Loop"},
    ],
)
def test_a_value_follows_the_definition_that_its_schema_refers_to(schema: Any, value: str) -> None:
    definitions = {
        "Point": {"type": ["object", "null"], "properties": {"x": {"type": "integer"}}},
        "Either": {"oneOf": [{"$ref": "#/$defs/Point"}, {"$ref": "#/$defs/Point"}]},
        "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}, {"type": "null"}]},
    }
    function = Function("f", json.dumps({"properties": {"a": schema}, "$defs": definitions}))
    assert json_of(value, properties_of(function)["a"]) == value.replace(" ", "")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": 5},
        {"type": [None, {}]},
        {"anyOf": 3},
        {"enum": 1},
        {"oneOf": [[], 5]},
        {"$ref": [1]},
        {"x-guidance": 5, "type": "integer"},
    ],
)
def test_a_schema_that_is_wrong_breaks_nothing(schema: Any) -> None:
    whole = {"properties": {"city": schema}, "required": 5, "$defs": {"a": 5}}
    function = Function("f", json.dumps(whole))
    parser = TaggedCallParser(SYNTAXES["glm45"], str, [function])
    _, calls = parser.feed(
        "<tool_call>f<arg_key>city</arg_key><arg_value>x</arg_value></tool_call>"
    )
    assert "".join(call.arguments for call in calls) == '{"city": "x"}'
    assert "city" in call_rules(Tools(b"", (function,)), SYNTAXES["glm45"], {})

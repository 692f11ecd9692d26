"""How a client may say what an answer must look like, and what of it reaches the worker."""

import json
from typing import Any

import pytest

from baton.wire.failures import InvalidRequest
from services.gateway.openai import chat, completions, responses
from services.gateway.openai.generation import Structure

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
NAMED = {"name": "answer", "schema": SCHEMA, "strict": True, "description": "d"}
TEXT = json.dumps(SCHEMA, separators=(",", ":"))


def chat_structure(**fields: Any) -> Structure | None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}
    return chat.parse(json.dumps(body).encode()).rules.structure


def completion_structure(**fields: Any) -> Structure | None:
    body = {"model": "m", "prompt": "x", **fields}
    return completions.parse(json.dumps(body).encode()).rules.structure


def response(**fields: Any) -> Any:
    return responses.parse(json.dumps({"model": "m", "input": "x", **fields}).encode())


@pytest.mark.parametrize("structure_of", [chat_structure, completion_structure])
@pytest.mark.parametrize(
    ("fields", "structure"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Structure("json_object")),
        (
            {"response_format": {"type": "json_schema", "json_schema": NAMED}},
            Structure("json_schema", TEXT),
        ),
        ({"structured_outputs": {"json": SCHEMA}}, Structure("json_schema", TEXT)),
        ({"structured_outputs": {"json": TEXT}}, Structure("json_schema", TEXT)),
        ({"structured_outputs": {"json_object": True}}, Structure("json_object")),
        ({"structured_outputs": {"regex": "a+"}}, Structure("regex", "a+")),
        ({"structured_outputs": {"choice": ["a", "b"]}}, Structure("choice", "", ("a", "b"))),
        ({"structured_outputs": {"grammar": "start: A"}}, Structure("ebnf", "start: A")),
        ({"guided_json": SCHEMA}, Structure("json_schema", TEXT)),
        ({"guided_regex": "a+"}, Structure("regex", "a+")),
        ({"guided_choice": ["a"]}, Structure("choice", "", ("a",))),
        ({"guided_grammar": "root ::= a"}, Structure("ebnf", "root ::= a")),
    ],
)
def test_every_way_of_asking(structure_of: Any, fields: dict[str, Any], structure: Any) -> None:
    assert structure_of(**fields) == structure


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {**NAMED, "x": 1}}},
            "response_format.json_schema.x",
        ),
        ({"guided_json": {"enum": ["x" * 200_000]}}, "guided_json"),
        ({"guided_choice": ["x" * 1000] * 200}, "guided_choice"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"structured_outputs": {"backend": "x"}}, "structured_outputs.backend"),
        ({"structured_outputs": {"regex": "a"}, "guided_json": {}}, "guided_json"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice"),
    ],
)
def test_refusals_name_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat_structure(**fields)
    assert caught.value.param == param


def test_a_response_asks_by_its_text_format_and_repeats_it() -> None:
    format = {"type": "json_schema", **NAMED}
    request = response(text={"format": format, "verbosity": "medium"})
    assert request.rules.structure == Structure("json_schema", TEXT)
    assert request.repeated["text"] == {"format": format, "verbosity": "medium"}
    assert response(text={"format": {"type": "json_object"}}).rules.structure.kind == "json_object"
    assert response().repeated["text"]["format"] == {"type": "text"}


@pytest.mark.parametrize(
    ("text", "param"),
    [
        ({"verbosity": "much"}, "text.verbosity"),
        ({"format": {"type": "json_schema", "name": "a"}}, "text.format.schema"),
        ({"format": {"type": "json_schema", "schema": {}}}, "text.format.name"),
        ({"format": {"type": "grammar"}}, "text.format.type"),
    ],
)
def test_a_response_format_that_cannot_be_is_named(text: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        response(text=text)
    assert caught.value.param == param

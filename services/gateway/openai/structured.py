"""Structured output: OpenAI's formats and vLLM's extras, all translated to one Structure.

    chat, completions   response_format {type: text | json_object | json_schema, json_schema: {...}}
                        structured_outputs {json | json_object | regex | choice | grammar}
                        guided_json, guided_regex, guided_choice, guided_grammar
    responses           text {format: {type: text | json_object | json_schema, name, schema, ...}}

A schema is always enforced, `strict` or not. The worker decides whether it can use a schema, an
expression or a grammar.
"""

from typing import Any, Literal

import msgspec

from baton.wire.failures import InvalidRequest
from baton.wire.limits import MAX_GRAMMAR_CHARS
from services.gateway.openai import limits
from services.gateway.openai.generation import Structure

FormatType = Literal["text", "json_object", "json_schema"]


class NamedSchema(msgspec.Struct, forbid_unknown_fields=True):
    name: limits.Label
    schema: dict[str, Any]
    description: limits.Text | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, forbid_unknown_fields=True):
    """The format of an answer to chat completions and, as in vLLM, to completions."""

    type: FormatType
    json_schema: NamedSchema | None = None


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True):
    """vLLM's structured output, of which a request has one."""

    json: dict[str, Any] | limits.SchemaText | None = None
    json_object: bool | None = None
    regex: limits.Regex | None = None
    choice: limits.AnswerChoices | None = None
    grammar: limits.GrammarText | None = None


class TextFormat(msgspec.Struct, forbid_unknown_fields=True):
    """The format of a response's text."""

    type: FormatType = "text"
    name: limits.Label | None = None
    schema: dict[str, Any] | None = None
    description: limits.Text | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct, forbid_unknown_fields=True):
    format: TextFormat | None = None
    # Accepted, and repeated, without effect.
    verbosity: limits.Verbosity | None = None


def of_format(asked: ResponseFormat) -> dict[str, Structure]:
    """The structure by the field that asks for it; empty for plain text. Raises InvalidRequest."""
    if asked.type == "text":
        return {}
    if asked.type == "json_object":
        return {"response_format": Structure("json_object")}
    if asked.json_schema is None:
        param = "response_format.json_schema"
        raise InvalidRequest(f"{param}: required", param=param)
    place = "response_format.json_schema.schema"
    return {"response_format": of_schema(asked.json_schema.schema, place)}


def of_outputs(asked: StructuredOutputs, prefix: str) -> dict[str, Structure]:
    """The structures by the field that asks for them, whose name is `prefix` and the member's name.
    Raises InvalidRequest."""
    found: dict[str, Structure] = {}
    if asked.json is not None:
        found[f"{prefix}json"] = of_schema(asked.json, f"{prefix}json")
    if asked.json_object:
        found[f"{prefix}json_object"] = Structure("json_object")
    if asked.regex is not None:
        found[f"{prefix}regex"] = Structure("regex", asked.regex)
    if asked.choice is not None:
        _check_size(sum(map(len, asked.choice)), f"{prefix}choice")
        found[f"{prefix}choice"] = Structure("choice", choices=tuple(asked.choice))
    if asked.grammar is not None:
        found[f"{prefix}grammar"] = Structure("ebnf", asked.grammar)
    return found


def of_text(asked: TextOptions | None) -> Structure | None:
    """The structure that a response request asks for, if any. Raises InvalidRequest."""
    format = None if asked is None else asked.format
    if format is None or format.type == "text":
        return None
    if format.type == "json_object":
        return Structure("json_object")
    for param, value in (("text.format.name", format.name), ("text.format.schema", format.schema)):
        if value is None:
            raise InvalidRequest(f"{param}: required", param=param)
    return of_schema(format.schema, "text.format.schema")


def text_object(asked: TextOptions | None) -> dict[str, Any]:
    """The format and the verbosity, as a response repeats them."""
    format = (asked and asked.format) or TextFormat()
    is_schema = format.type == "json_schema"
    shown = msgspec.to_builtins(format) if is_schema else {"type": format.type}
    return {"format": shown, "verbosity": (asked and asked.verbosity) or "medium"}


def only_one(found: dict[str, Structure]) -> Structure:
    """The one structure that was asked for. Raises InvalidRequest when there are several."""
    if len(found) > 1:
        first, second, *_ = found
        raise InvalidRequest(f"{second}: does not go with {first}", param=second)
    return next(iter(found.values()))


def of_schema(schema: Any, place: str) -> Structure:
    """The structure of JSON that follows a schema. Raises InvalidRequest."""
    text = schema if isinstance(schema, str) else msgspec.json.encode(schema).decode()
    _check_size(len(text), place)
    return Structure("json_schema", text)


def _check_size(num_chars: int, place: str) -> None:
    if num_chars > MAX_GRAMMAR_CHARS:
        raise InvalidRequest(
            f"{place}: got {num_chars} characters; expected at most {MAX_GRAMMAR_CHARS}",
            param=place,
        )

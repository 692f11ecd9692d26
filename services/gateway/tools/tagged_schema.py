"""The parameters of a function whose arguments stand between tags: their types and values.

A value is text where the schema says string, else JSON if it is that.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from services.gateway.openai.generation import Function

_TYPES: Mapping[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}
# As models that were taught Python write them.
_PYTHON = {"True": "true", "False": "false", "None": "null"}
_REFERENCE = "#/$defs/"
# Definitions may name each other without end.
MAX_DEPTH = 100
_NO_DEFINITIONS: Mapping[str, Any] = {}


def required_of(function: Function) -> set[str]:
    """The names of the parameters that a call must have."""
    required = msgspec.json.decode(function.parameters_json or "{}").get("required")
    return {each for each in listed(required) if isinstance(each, str)}


def properties_of(function: Function) -> dict[str, Any]:
    """The schemas of a function's parameters, by name; each has the definitions it may refer to."""
    schema: dict[str, Any] = msgspec.json.decode(function.parameters_json or "{}")
    properties, definitions = schema.get("properties"), schema.get("$defs")
    if not isinstance(properties, dict):
        return {}
    if not isinstance(definitions, dict):
        return properties
    return {
        name: resolved({"$defs": definitions, **each}) if isinstance(each, dict) else each
        for name, each in properties.items()
    }


def resolved(schema: dict[str, Any]) -> Any:
    """A schema with the definition that it refers to in its place, if it refers to one of its
    own."""
    definitions = schema.get("$defs")
    if not isinstance(definitions, dict):
        return schema
    named = definitions.get(name_in(schema), schema)
    return {"$defs": definitions, **named} if isinstance(named, dict) else named


def name_in(schema: dict[str, Any]) -> str:
    """The definition that a schema refers to; empty when it refers to none."""
    return str(schema.get("$ref", "")).removeprefix(_REFERENCE)


def with_own_definitions(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema with those of its definitions that it needs; with all where that is not plain."""
    definitions = schema.get("$defs")
    if not isinstance(definitions, dict):
        return schema
    rest = {name: value for name, value in schema.items() if name != "$defs"}
    needed: dict[str, Any] = {}
    waiting: list[Any] = [rest]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            waiting += part.values()
            name = name_in(part)
            if "$ref" in part and name not in definitions:
                return schema
            if name in definitions and name not in needed:
                needed[name] = definitions[name]
                waiting.append(definitions[name])
        elif isinstance(part, list):
            waiting += part
    return {"$defs": needed, **rest} if needed else rest


def types_of(schema: Any) -> set[str]:
    """The types that a schema admits, as it says them; empty: any. A schema that is wrong admits
    any."""
    definitions = schema.get("$defs") if isinstance(schema, dict) else None
    known = definitions if isinstance(definitions, dict) else _NO_DEFINITIONS
    return _types(schema, known, {}, 0) or set()


def _types(
    schema: Any, definitions: Mapping[str, Any], known: dict[str, set[str] | None], depth: int
) -> set[str] | None:
    """The types of a schema; None: any. `known`: those of definitions, each of which is read once,
    however often others name it."""
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return None
    if (name := name_in(schema)) in definitions:
        if name not in known:
            # A definition that names itself admits any.
            known[name] = None
            known[name] = _types(definitions[name], definitions, known, depth + 1)
        return known[name]
    if "const" in schema:
        return {type_of(schema["const"])}
    if isinstance(schema.get("enum"), list):
        return {type_of(value) for value in schema["enum"]}
    types = schema.get("type")
    named = types if isinstance(types, list) else [types]
    found = {each for each in named if isinstance(each, str)}
    branches = [each for key in ("anyOf", "oneOf") for each in listed(schema.get(key))]
    for branch in branches:
        admitted = _types(branch, definitions, known, depth + 1)
        if admitted is None:
            return None
        found |= admitted
    return found if found or branches else None


def listed(value: Any) -> list[Any]:
    """A value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def type_of(value: Any) -> str:
    """The name of a JSON value's type."""
    return "null" if value is None else _TYPES[type(value)]


def json_of(value: str, schema: Any) -> str:
    """A parameter's value in JSON: text, unless its schema admits what it is otherwise."""
    types = types_of(schema)
    if types == {"string"}:
        return encoded(value)
    text = value.strip()
    try:
        decoded = msgspec.json.decode(_PYTHON.get(text, text))
    except (msgspec.DecodeError, RecursionError):
        return encoded(value)
    kind = type_of(decoded)
    is_admitted = not types or kind in types or (kind == "integer" and "number" in types)
    return encoded(decoded) if is_admitted and kind != "string" else encoded(value)


def encoded(value: Any) -> str:
    """A value in JSON."""
    return msgspec.json.encode(value).decode()

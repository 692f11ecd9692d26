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
_NO_DEFINITIONS: Mapping[str, Any] = {}


def required_of(function: Function) -> list[Any]:
    """The names of the parameters that a call must have."""
    required = msgspec.json.decode(function.parameters_json or "{}").get("required")
    return required if isinstance(required, list) else []


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
    named = definitions.get(_name_in(schema), schema)
    return {"$defs": definitions, **named} if isinstance(named, dict) else named


def _name_in(schema: dict[str, Any]) -> str:
    """The definition that a schema refers to; empty when it refers to none."""
    return str(schema.get("$ref", "")).removeprefix(_REFERENCE)


def types_of(schema: Any, definitions: Mapping[str, Any] = _NO_DEFINITIONS) -> set[str]:
    """The types that a schema admits, as it says them; empty: any. A schema that is wrong admits
    any. `definitions`: those that it may refer to, if it has none of its own."""
    if not isinstance(schema, dict):
        return set()
    own = schema.get("$defs")
    definitions = own if isinstance(own, dict) else definitions
    if (name := _name_in(schema)) in definitions:
        # Without this one: a definition may refer to itself.
        others = {key: value for key, value in definitions.items() if key != name}
        return types_of(definitions[name], others)
    if "const" in schema:
        return {type_of(schema["const"])}
    if isinstance(schema.get("enum"), list):
        return {type_of(value) for value in schema["enum"]}
    types = schema.get("type")
    named = types if isinstance(types, list) else [types]
    found = {each for each in named if isinstance(each, str)}
    for key in ("anyOf", "oneOf"):
        parts = schema.get(key)
        for part in parts if isinstance(parts, list) else ():
            admitted = types_of(part, definitions)
            if not admitted:
                return set()
            found |= admitted
    return found


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

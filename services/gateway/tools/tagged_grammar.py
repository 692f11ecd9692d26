"""The rules (Lark) of calls of one function whose arguments stand between tags.

A string is any text up to its tag, one of an enumeration is one of its values, and all else is JSON
that follows its schema. Parameters come in the schema's order.
"""

from collections.abc import Callable
from typing import Any

from baton.wire.limits import JSON_WHITE_SPACE
from services.gateway.openai.generation import Function
from services.gateway.tools.call_syntax import CallSyntax
from services.gateway.tools.tagged_schema import encoded, properties_of, required_of, types_of


def tagged_call(
    rule: str, function: Function, syntax: CallSyntax, literal: Callable[[str], str]
) -> list[str]:
    """The rule of this name, behind the mark that begins a call, and those that it needs.
    `literal` writes text that stands as it is."""
    tags = syntax.tags
    assert tags is not None
    names, rules = [], []
    required = required_of(function)
    for number, (key, schema) in enumerate(properties_of(function).items()):
        name = f"{rule}_{number}"
        names.append(name if key in required else f"{name}?")
        begin = literal(f"{tags.key_begin}{key}{tags.key_end}{tags.key_margin}{tags.value_begin}")
        margin = literal(tags.value_margin)
        value = _value(name, schema, literal(tags.value_margin + tags.value_end))
        rules.append(f"{name}: {begin} {margin} {name}_value {literal(syntax.margin)}")
        rules += value
    head = literal(f"{tags.head_margin}{tags.name_begin}{function.name}{tags.name_end}\n")
    close = literal(f"{tags.close}{tags.head_margin}{syntax.end}")
    return [f"{rule}: {' '.join([head, *names, close])}", *rules]


def _value(name: str, schema: Any, end: str) -> list[str]:
    """The rule of a parameter's value with the tag behind it."""
    types = types_of(schema)
    enumeration = schema.get("enum") if isinstance(schema, dict) else None
    if isinstance(enumeration, list) and types == {"string"} and "const" not in schema:
        options = " | ".join(map(encoded, enumeration))
        return [f"{name}_value: ({options}) {end}"]
    if types and "string" not in types:
        own = schema.get("x-guidance")
        guidance = {
            "whitespace_pattern": JSON_WHITE_SPACE,
            **(own if isinstance(own, dict) else {}),
        }
        guided = {**schema, "x-guidance": guidance}
        return [f"{name}_value: %json {encoded(guided)} {end}"]
    if "<[" in end:
        return [f"{name}_value: {name}_text {end[end.index('<[') :]}", rf"{name}_text: /(.|\n)*/"]
    return [rf"{name}_value[lazy]: /(.|\n)*/ {end}"]

"""The rules (Lark) of calls of one function whose arguments stand between tags.

A string is the text up to its tag, in the form that its schema asks for; one of an enumeration is
one of its values, and all else is JSON that follows its schema. Parameters come in the schema's
order.
"""

from collections.abc import Callable
from typing import Any

from baton.wire.failures import InvalidRequest
from baton.wire.limits import JSON_WHITE_SPACE
from services.gateway.openai.generation import Function
from services.gateway.tools.call_syntax import CallSyntax
from services.gateway.tools.tagged_schema import (
    encoded,
    properties_of,
    required_of,
    with_own_definitions,
)
from services.gateway.tools.tagged_text import Forms, forms_of

# A parameter has its schema for itself, with the definitions that it refers to.
MAX_RULE_CHARS = 1024 * 1024


def tagged_call(
    rule: str, function: Function, syntax: CallSyntax, literal: Callable[[str], str]
) -> list[str]:
    """The rule of this name, behind the mark that begins a call, and those that it needs.
    `literal` writes text that stands as it is."""
    tags = syntax.tags
    assert tags is not None
    names, rules, num_chars = [], [], 0
    required = required_of(function)
    for number, (key, schema) in enumerate(properties_of(function).items()):
        name = f"{rule}_{number}"
        names.append(name if key in required else f"{name}?")
        begin = literal(f"{tags.key_begin}{key}{tags.key_end}{tags.key_margin}{tags.value_begin}")
        margin = literal(tags.value_margin)
        value = _value(name, schema, margin, literal(tags.value_end))
        rules.append(f"{name}: {begin} {margin} {name}_value {literal(syntax.margin)}")
        rules += value
        num_chars += sum(map(len, value))
        if num_chars > MAX_RULE_CHARS:
            raise too_long()
    head = literal(f"{tags.head_margin}{tags.name_begin}{function.name}{tags.name_end}\n")
    close = literal(f"{tags.close}{tags.head_margin}{syntax.end}")
    return [f"{rule}: {' '.join([head, *names, close])}", *rules]


def too_long() -> InvalidRequest:
    """The refusal of rules that are too long together."""
    message = "tools: the schemas are too long where each parameter has the definitions it needs"
    return InvalidRequest(message, param="tools")


def _value(name: str, schema: Any, margin: str, tag: str) -> list[str]:
    """The rule of a parameter's value with the tag behind it."""
    forms = forms_of(schema)
    if forms is not None and (forms.terms or forms.schemas):
        return _formed(name, forms, margin, tag)
    if tag.startswith("<["):
        return [f"{name}_value: {name}_text {tag}", rf"{name}_text: /(.|\n)*/"]
    return [rf"{name}_value[lazy]: /(.|\n)*/ {margin} {tag}"]


def _formed(name: str, forms: Forms, margin: str, tag: str) -> list[str]:
    """The rules of a value that has one of these forms. A text is one term with its tag, which it
    has nowhere else: it ends there, although it might go on."""
    alternatives = [f"%json {encoded(_guided(each))} {margin} {tag}" for each in forms.schemas]
    if not forms.terms:
        return [f"{name}_value: {' | '.join(alternatives)}"]
    term, text = name.upper(), " | ".join(f"({each})" for each in forms.terms)
    if forms.schemas:
        # What begins like an object or a list is one.
        text = rf"({text}) & ~(/[\[{{](.|\n)*/)"
    if tag.startswith("<["):
        rule, alternative = f"{term}: ({text}) {margin}", f"{term} {tag}"
    else:
        without = rf"~(/(.|\n)*/ {tag} /(.|\n)*/)"
        rule, alternative = f"{term}: (({text}) & {without}) {margin} {tag}", term
    return [f"{name}_value: {' | '.join([alternative, *alternatives])}", rule]


def _guided(schema: dict[str, Any]) -> dict[str, Any]:
    own = schema.get("x-guidance")
    guidance = own if isinstance(own, dict) else {}
    schema = with_own_definitions(schema)
    return {**schema, "x-guidance": {"whitespace_pattern": JSON_WHITE_SPACE, **guidance}}

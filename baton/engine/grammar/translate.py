"""Translates what clients write to the text that llguidance compiles. Errors are one bounded line.

    json_schema  draft 2020-12, as far as the library has it: an unknown keyword is refused by name.
                 Between tokens of the JSON stands nothing, one space, or a line break and up to 32
                 blanks: a model must not fill its output with white space
    json_object  any JSON object, with the same white space
    regex        Rust's syntax (no look-around, no back references), matched as a whole;
                 `\\d` is [0-9], `\\w` and `\\s` are Unicode's
    choice       a JSON list of strings
    ebnf         Lark, as llguidance has it (a rule `start:`); `ebnf_to_lark` makes that of GBNF
                 (a rule `root ::=`), which llama.cpp and xgrammar read

Source: https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
and https://github.com/guidance-ai/llguidance/blob/main/docs/json_schema.md.
"""

import re
from typing import Any

import msgspec

from baton.engine.protocol.messages import Grammar
from baton.wire.limits import JSON_WHITE_SPACE

MAX_MESSAGE_CHARS = 240
_ANY_OBJECT = b'{"type": "object"}'
_LARK_START = re.compile(r"(?m)^\s*(%llguidance\b|start\s*:(?!:=))")
_CAUSE = re.compile(r"(?m)^error: (.*)$")
_CAMEL_HUMP = re.compile(r"([a-z])([A-Z])")
_END_OF_MESSAGE = "<non-verbose/>"


class GrammarRefused(Exception):
    """The grammar cannot be used; the message is one line for its author."""

    def __init__(self, message: str) -> None:
        # The library quotes a whole expression before it says what is wrong with it.
        cause = _CAUSE.search(message)
        line = " ".join((cause[1] if cause else message.removesuffix(_END_OF_MESSAGE)).split())
        is_long = len(line) > MAX_MESSAGE_CHARS
        super().__init__(line[:MAX_MESSAGE_CHARS] + "..." if is_long else line)


def to_library(grammar: Grammar) -> str:
    """The library's text of a grammar. Raises GrammarRefused; ebnf must be Lark already."""
    form = _form(grammar)
    if grammar.frame:
        return _encoded({"lark_grammar": grammar.frame}, {"name": "form", **form})
    return _encoded(form)


def _form(grammar: Grammar) -> dict[str, Any]:
    match grammar.kind:
        case "json_object":
            return _json_grammar(_ANY_OBJECT)
        case "json_schema":
            return _json_grammar(grammar.text.encode())
        case "regex":
            return _regex_grammar(grammar.text)
        case "choice":
            return _choice_grammar(grammar.text)
        case "ebnf":
            if not _LARK_START.search(grammar.text):
                raise GrammarRefused("the grammar has no rule named start")
            return {"lark_grammar": grammar.text}


def ebnf_to_lark(text: str) -> str:
    """Lark as it stands, GBNF translated. Raises GrammarRefused.

    Plain Python over text that a stranger wrote: only for a process that may be killed.
    """
    if _LARK_START.search(text):
        return text
    if "::=" not in text:
        raise GrammarRefused("the grammar has neither a rule start: (Lark) nor root ::= (GBNF)")
    from llguidance.gbnf_to_lark import GbnfToLarkError, GrammarParser, gbnf_to_lark

    try:
        _check_rules(GrammarParser().parse(text))
        return gbnf_to_lark(text)
    except RecursionError:
        raise GrammarRefused("the grammar is nested too deeply") from None
    # A count that is not a number; an escape that the text ends in.
    except (GbnfToLarkError, ValueError, IndexError) as error:
        raise GrammarRefused(str(error)) from error


def _check_rules(rules: dict[str, Any]) -> None:
    """Refuse what the translator raises a bare Exception for. `rules` are its own, by name."""
    from llguidance.gbnf_to_lark import RuleRefNode

    if "root" not in rules:
        raise GrammarRefused("the grammar has no rule named root")
    # The translator calls root start, and writes other names in one way, by what they stand for.
    names = {"start": "root"}
    for name in rules.keys() - {"root"}:
        written = _CAMEL_HUMP.sub(r"\1_\2", name.replace("-", "_")).lower()
        other = names.setdefault(written, name)
        if other is not name:
            first, second = sorted((name, other))
            raise GrammarRefused(f"the names of the rules {first} and {second} are too much alike")
    nodes: list[Any] = list(rules.values())
    while nodes:
        node = nodes.pop()
        if isinstance(node, RuleRefNode) and node.name not in rules:
            raise GrammarRefused(f"the grammar has no rule named {node.name}")
        nodes += node.children()


def _json_grammar(schema_json: bytes) -> dict[str, Any]:
    try:
        schema = msgspec.json.decode(schema_json)
    except (msgspec.DecodeError, RecursionError) as error:
        raise GrammarRefused(f"the schema is not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise GrammarRefused("the schema must be a JSON object")
    own = schema.get("x-guidance", {})
    if not isinstance(own, dict):
        raise GrammarRefused("x-guidance must be a JSON object")
    schema["x-guidance"] = {"whitespace_pattern": JSON_WHITE_SPACE, **own}
    return {"json_schema": schema}


def _regex_grammar(regex: str) -> dict[str, Any]:
    from llguidance import regex_to_lark

    return {"lark_grammar": f"start: /{regex_to_lark(regex, 'd')}/"}


def _choice_grammar(choices_json: str) -> dict[str, Any]:
    """One terminal, so that thousands of choices are one automaton and not as many rules."""
    choices = msgspec.json.decode(choices_json, type=list[str])
    options = " | ".join(msgspec.json.encode(choice).decode() for choice in choices)
    return {"lark_grammar": f"start: CHOICE\nCHOICE: {options}"}


def _encoded(*grammars: dict[str, Any]) -> str:
    return msgspec.json.encode({"grammars": grammars}).decode()

"""Rules (Lark, as llguidance has it) of answers that call functions, in a family's syntax.

Where a call is required the whole answer is calls. Where the answer has another form it is that, or
calls. Otherwise text may come before them, and what a call begins with decides: from there on the
arguments follow their schema.
Source: https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md.
"""

import re
from collections.abc import Mapping
from itertools import chain
from typing import Any

import msgspec

from baton.wire.limits import JSON_WHITE_SPACE
from services.gateway.openai.generation import Function, Tools
from services.gateway.tools.call_syntax import CallSyntax
from services.gateway.tools.tagged_grammar import MAX_RULE_CHARS, tagged_call, too_long


def call_rules(
    tools: Tools, syntax: CallSyntax, special_ids: Mapping[str, int], *, has_form: bool = False
) -> str:
    """The rule `answer` and those that it needs; with `has_form` it names one of answers without
    calls, `plain`. `special_ids`: the marks that are single tokens without text."""
    grammar = _Grammar(syntax, special_ids)
    rules, num_chars = [], 0
    for number, function in enumerate(tools.functions):
        rules.append(grammar.call(f"call_{number}", function))
        num_chars += sum(map(len, rules[-1]))
        if num_chars > MAX_RULE_CHARS:
            raise too_long()
    names = " | ".join(f"call_{number}" for number in range(len(rules)))
    calls = chain.from_iterable(rules)
    if tools.is_required:
        answer = [f"answer: {grammar.calls(tools)}"]
    elif has_form or syntax.is_alone:
        answer = [f"answer: {grammar.calls(tools)} | plain"]
    else:
        answer = grammar.optional(tools)
    return "\n".join([*answer, f"call: {names}", *calls])


class _Grammar:
    """Writes the rules of one grammar."""

    def __init__(self, syntax: CallSyntax, special_ids: Mapping[str, int]) -> None:
        self._syntax = syntax
        self._special_ids = special_ids
        longest_first = sorted(special_ids, key=len, reverse=True)
        self._special = re.compile(f"({'|'.join(map(re.escape, longest_first))})")

    def call(self, rule: str, function: Function) -> list[str]:
        """The rules of calls of one function, behind the mark at their beginning."""
        syntax, margin = self._syntax, self._syntax.margin
        if syntax.tags is not None:
            return tagged_call(rule, function, syntax, self._text)
        before, after = self._around(function)
        end = self._text(after + margin + syntax.end)
        return [f"{rule}: {before} %json {_schema(function)} {end}"]

    def _around(self, function: Function) -> tuple[str, str]:
        """The rule of what stands before the arguments of a call, and the text behind them."""
        syntax, margin = self._syntax, self._syntax.margin
        if syntax.id_begin:
            call_id = f"{_quoted(f'{syntax.id_begin}{function.name}:')} /[0-9]{{1,3}}/"
            return f"{call_id} {self._text(syntax.name_end)}", ""
        if syntax.name_end:
            name = f"{function.name}{syntax.after_name}"
            return self._text(f"{name}{margin}{syntax.name_end}{margin}"), ""
        name = msgspec.json.encode(function.name).decode()
        return self._text(f'{margin}{{"name": {name}, "{syntax.arguments_key}": '), "}"

    def calls(self, tools: Tools) -> str:
        """An answer that is calls and nothing else."""
        syntax = self._syntax
        first = self._text(syntax.opening + syntax.list_begin + syntax.begin)
        return f"{first} call {self._more(tools)} {self._text(syntax.closing)}"

    def optional(self, tools: Tools) -> list[str]:
        """The rules of an answer that is text, and calls where the model begins one."""
        syntax = self._syntax
        if not syntax.trigger:
            return [f"answer: call {self._more(tools)} | TEXT", r"TEXT: /[^{ \n](.|\n)*/"]
        rules = [r"TEXT: /(.|\n)*/", *self._head()]
        if syntax.opening:
            first, closing = (
                self._text(syntax.list_begin + syntax.begin),
                self._text(syntax.closing),
            )
            return [f"answer: head {first} call {self._more(tools)} {closing} | TEXT", *rules]
        return [
            f"answer: {'(head call)* TEXT' if tools.is_parallel else 'head call | TEXT'}",
            *rules,
        ]

    def _more(self, tools: Tools) -> str:
        """Further calls, behind the first."""
        syntax = self._syntax
        if syntax.is_alone or not tools.is_parallel:
            return ""
        separator = f"{syntax.separator} " if syntax.separator else syntax.margin
        return f"({self._text(separator + syntax.begin)} call)*"

    def _head(self) -> list[str]:
        """The rule of text up to the mark that begins calls."""
        trigger = self._syntax.trigger
        first, *rest = self._pieces(trigger)
        if first in self._special_ids:
            return [f"head: TEXT {self._text(trigger)}"]
        return [
            f"head_text[lazy]: TEXT {_quoted(first)}",
            f"head: head_text {self._text(''.join(rest))}",
        ]

    def _text(self, text: str) -> str:
        """Text that is written as it stands, with its special tokens as such."""
        ids = self._special_ids
        return " ".join(
            f"<[{ids[piece]}]>" if piece in ids else _quoted(piece) for piece in self._pieces(text)
        )

    def _pieces(self, text: str) -> list[str]:
        pieces = self._special.split(text) if self._special_ids else [text]
        return [piece for piece in pieces if piece]


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()


def _schema(function: Function) -> str:
    """The schema of a function's arguments, in one line."""
    schema: dict[str, Any] = msgspec.json.decode(function.parameters_json or "{}")
    guidance = {"whitespace_pattern": JSON_WHITE_SPACE, **schema.get("x-guidance", {})}
    return msgspec.json.encode({"type": "object", **schema, "x-guidance": guidance}).decode()

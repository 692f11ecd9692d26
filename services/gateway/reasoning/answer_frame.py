"""The Lark (as llguidance has it) of a whole answer: its form, behind reasoning.

The form, which a client or the calls of functions ask for, binds the answer and not the reasoning.
Source: https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md.
"""

import re
from collections.abc import Mapping

import msgspec

from services.gateway.reasoning.marked_reasoning import Place
from services.gateway.reasoning.reasoning_syntax import ReasoningSyntax


def answer_frame(
    call_rules: str,
    syntax: ReasoningSyntax | None,
    place: Place,
    special_ids: Mapping[str, int],
    *,
    has_form: bool,
) -> str:
    """The grammar of an answer that begins at `place`. `call_rules` define `answer`, if there are
    any; with `has_form`, an answer that calls nothing is @form, else it is text. `special_ids`: the
    marks without text."""
    answer_begin = "" if syntax is None else _text(syntax.answer_begin, special_ids)
    rules = [call_rules or "answer: plain"]
    if has_form:
        rules.append(f"plain: {answer_begin} @form")
    elif answer_begin:
        rules += [f"plain: {answer_begin} PLAIN", r"PLAIN: /(.|\n)*/"]
    if syntax is None or place is Place.ANSWER:
        start = "start: answer"
    else:
        begin = _text(syntax.begin, special_ids)
        before = "thought" if place is Place.REASONING else f"({begin} thought)?"
        start = f"start: {before} answer"
        rules += _thought(syntax.end, special_ids)
    return "\n".join(["%llguidance {}", start, *rules])


def _thought(end: str, special_ids: Mapping[str, int]) -> list[str]:
    """The rules of reasoning up to its end, and of the line breaks behind it."""
    first, *rest = _pieces(end, special_ids)
    gap = r"gap: /\n{0,2}/"
    behind = " ".join(_token(piece, special_ids) for piece in rest) or "gap"
    if first in special_ids:
        text = f"thought: THOUGHT {_token(first, special_ids)} {behind}"
        return [text, r"THOUGHT: /(.|\n)*/", gap]
    text = rf"thought_text[lazy]: /(.|\n)*/ {_token(first, special_ids)}"
    return [f"thought: thought_text {behind}", text, gap]


def _text(text: str, special_ids: Mapping[str, int]) -> str:
    """Text that is written as it stands, with its special tokens as such."""
    return " ".join(_token(piece, special_ids) for piece in _pieces(text, special_ids))


def _pieces(text: str, special_ids: Mapping[str, int]) -> list[str]:
    marks = "|".join(map(re.escape, sorted(special_ids, key=len, reverse=True)))
    pieces = re.split(f"({marks})", text) if marks else [text]
    return [piece for piece in pieces if piece]


def _token(piece: str, special_ids: Mapping[str, int]) -> str:
    if piece in special_ids:
        return f"<[{special_ids[piece]}]>"
    return msgspec.json.encode(piece).decode()

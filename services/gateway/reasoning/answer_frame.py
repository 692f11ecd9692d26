"""The Lark (as llguidance has it) of a whole answer: its form, behind reasoning.

The form, which a client or the calls of functions ask for, binds the answer and not the reasoning.
Source: https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md.
"""

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
    any; with `has_form`, an answer that calls nothing is @form. `special_ids`: the marks without
    text."""
    rules = [call_rules or "answer: plain", *(["plain: @form"] if has_form else ())]
    if syntax is None or place is Place.ANSWER:
        start = "start: answer"
    else:
        begin = _token(syntax.begin, special_ids)
        before = "thought" if place is Place.REASONING else f"({begin} thought)?"
        start = f"start: {before} answer"
        rules += _thought(syntax.end, special_ids)
    return "\n".join(["%llguidance {}", start, *rules])


def _thought(end: str, special_ids: Mapping[str, int]) -> list[str]:
    """The rules of reasoning up to its end, and of the line breaks behind it."""
    gap = r"gap: /\n{0,2}/"
    mark = _token(end, special_ids)
    if end in special_ids:
        return [f"thought: THOUGHT {mark} gap", r"THOUGHT: /(.|\n)*/", gap]
    return ["thought: thought_text gap", rf"thought_text[lazy]: /(.|\n)*/ {mark}", gap]


def _token(mark: str, special_ids: Mapping[str, int]) -> str:
    if mark in special_ids:
        return f"<[{special_ids[mark]}]>"
    return msgspec.json.encode(mark).decode()

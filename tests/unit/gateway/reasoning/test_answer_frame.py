"""The form of an answer behind reasoning, against the library that enforces it."""

import json

import llguidance
import pytest

from services.gateway.openai.generation import Function, Tools
from services.gateway.reasoning.answer_frame import answer_frame
from services.gateway.reasoning.marked_reasoning import Place
from services.gateway.reasoning.reasoning_syntax import SYNTAXES
from services.gateway.tools import call_syntax
from services.gateway.tools.call_grammar import call_rules

THINK = SYNTAXES["think"]
YES = {"name": "form", "lark_grammar": 'start: "yes" | "no"'}
CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
TOKENIZER = llguidance.LLTokenizer("byte")


def accepts(frame: str, text: str) -> bool:
    """The text follows the frame around yes or no, and may end there."""
    grammars = [{"lark_grammar": frame}, *([YES] if "@form" in frame else [])]
    matcher = llguidance.LLMatcher(TOKENIZER, json.dumps({"grammars": grammars}))
    assert not matcher.get_error()
    tokens = TOKENIZER.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("place", "right", "wrong"),
    [
        (
            Place.EITHER,
            ["yes", "<think>\nno </th\n</think>\n\nyes"],
            ["<think>yes", "maybe", "\nno"],
        ),
        (Place.REASONING, ["\nHm.\n</think>\n\nno", "</think>yes"], ["yes", "Hm.</think>\n\n\nno"]),
        (Place.ANSWER, ["yes"], ["<think></think>yes"]),
    ],
)
def test_the_form_binds_the_answer_and_not_the_reasoning(
    place: Place, right: list[str], wrong: list[str]
) -> None:
    frame = answer_frame("", THINK, place, {}, has_form=True)
    assert [text for text in right if not accepts(frame, text)] == []
    assert [text for text in wrong if accepts(frame, text)] == []


def test_marks_that_are_special_tokens_are_named_by_their_ids() -> None:
    ids = {"[THINK]": 5, "[/THINK]": 6}
    frame = answer_frame("", SYNTAXES["mistral"], Place.EITHER, ids, has_form=True)
    assert "start: (<[5]> thought)? answer" in frame
    assert "thought: THOUGHT <[6]> gap" in frame


@pytest.mark.parametrize("name", ["hermes", "deepseek_v31", "llama3", "mistral"])
def test_an_answer_with_tools_and_a_form_is_calls_or_the_form(name: str) -> None:
    syntax = call_syntax.SYNTAXES[name]
    call = {
        "hermes": CALL,
        "deepseek_v31": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "llama3": '{"name": "f", "parameters": {}}',
        "mistral": '[TOOL_CALLS][{"name": "f", "arguments": {}}]',
    }[name]
    tools = Tools(b"", (Function("f", '{"additionalProperties": false}'),))
    rules = call_rules(tools, syntax, {}, has_form=True)
    frame = answer_frame(rules, THINK, Place.EITHER, {}, has_form=True)
    for text in ("yes", call, f"<think>\nHm.\n</think>\n\n{call}", "<think></think>no"):
        assert accepts(frame, text), text
    assert not accepts(frame, "maybe")
    assert not accepts(frame, f"yes{call}")


def test_calls_that_are_required_are_made_behind_the_reasoning() -> None:
    tools = Tools(b"", (Function("f", '{"additionalProperties": false}'),), is_required=True)
    rules = call_rules(tools, call_syntax.SYNTAXES["hermes"], {})
    frame = answer_frame(rules, THINK, Place.REASONING, {}, has_form=False)
    assert accepts(frame, f"Hm.</think>\n\n{CALL}")
    assert not accepts(frame, CALL)
    assert not accepts(frame, "Hm.</think>\n\nyes")


HARMONY_CALL = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}"
ANALYSIS = "<|channel|>analysis<|message|>Hm <|.<|end|><|start|>assistant"


@pytest.mark.parametrize("has_form", [True, False])
def test_harmony_has_a_message_for_a_call_and_one_for_the_rest(has_form: bool) -> None:
    harmony, final = SYNTAXES["harmony"], "<|channel|>final<|message|>"
    tools = Tools(b"", (Function("f", '{"additionalProperties": false}', is_strict=True),))
    rules = call_rules(tools, call_syntax.SYNTAXES["harmony"], {}, has_form=has_form)
    frame = answer_frame(rules, harmony, Place.EITHER, {}, has_form=has_form)
    for text in (HARMONY_CALL, f"{final}yes", ANALYSIS + HARMONY_CALL, f"{ANALYSIS}{final}no"):
        assert accepts(frame, text), text
    assert accepts(frame, f"{ANALYSIS}{final}maybe") is not has_form
    assert not accepts(frame, f"{HARMONY_CALL}{HARMONY_CALL}")
    assert not accepts(frame, "yes")


def test_harmony_is_told_by_its_special_tokens() -> None:
    marks = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>")
    ids = {mark: number for number, mark in enumerate(marks)}
    tools = Tools(b"", (Function("f", ""),), is_required=True)
    rules = call_rules(tools, call_syntax.SYNTAXES["harmony"], ids)
    frame = answer_frame(rules, SYNTAXES["harmony"], Place.EITHER, ids, has_form=False)
    assert 'start: (<[1]> "analysis" <[3]> thought)? answer' in frame
    assert 'thought: THOUGHT <[4]> <[0]> "assistant"' in frame
    assert 'answer: <[1]> "commentary to=functions." call' in frame
    assert 'call_0: "f " <[2]> "json" <[3]> %json' in frame

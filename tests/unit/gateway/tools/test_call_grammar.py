"""Grammars of tool calls, against the library that enforces them, over a tokenizer of bytes."""

import llguidance
import pytest

from services.gateway.openai.generation import Function, Tools
from services.gateway.tools.call_grammar import call_rules
from services.gateway.tools.call_syntax import SYNTAXES

CITY = '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}'
F, G = Function("f", CITY, is_strict=True), Function("g", "")
PARIS = '{"city": "Paris"}'
ONE = {
    "hermes": f'<tool_call>\n{{"name": "f", "arguments": {PARIS}}}\n</tool_call>',
    "llama3": f'{{"name": "f", "parameters": {PARIS}}}',
    "mistral": f'[TOOL_CALLS][{{"name": "f", "arguments": {PARIS}}}]',
    "mistral_named": f"[TOOL_CALLS]f[ARGS]{PARIS}",
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
    f"{PARIS}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek_v31": f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{PARIS}"
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
}
TWO = {
    "hermes": f"{ONE['hermes']}\n{ONE['hermes']}",
    "llama3": f"{ONE['llama3']}; {ONE['llama3']}",
    "mistral": ONE["mistral"][:-1] + ", " + ONE["mistral"].removeprefix("[TOOL_CALLS]["),
    "mistral_named": f"{ONE['mistral_named']}{ONE['mistral_named']}",
}
TOKENIZER = llguidance.LLTokenizer("byte")


def accepts(grammar: str, text: str) -> bool:
    """The text follows the grammar, and may end there."""
    matcher = llguidance.LLMatcher(TOKENIZER, llguidance.grammar_from("lark", grammar))
    assert not matcher.get_error()
    tokens = TOKENIZER.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def grammar_of(name: str, tools: Tools) -> str:
    return f"start: answer\n{call_rules(tools, SYNTAXES[name], {})}"


@pytest.mark.parametrize("name", ONE)
def test_a_required_answer_is_calls_with_right_arguments(name: str) -> None:
    grammar = grammar_of(name, Tools(b"", (F, G), is_required=True))
    assert accepts(grammar, ONE[name])
    assert not accepts(grammar, "Hello")
    assert not accepts(grammar, "")
    assert not accepts(grammar, ONE[name].replace("city", "town"))
    assert not accepts(grammar, ONE[name].replace("f", "h", 1))
    if name in TWO:
        assert accepts(grammar, TWO[name])


@pytest.mark.parametrize("name", TWO)
def test_without_parallel_calls_there_is_one(name: str) -> None:
    for is_required in (True, False):
        tools = Tools(b"", (F,), is_required=is_required, is_parallel=False)
        grammar = grammar_of(name, tools)
        assert accepts(grammar, ONE[name])
        if name != "llama3" or is_required:
            assert not accepts(grammar, TWO[name])


@pytest.mark.parametrize("name", ONE)
def test_an_optional_call_has_right_arguments_or_is_text(name: str) -> None:
    grammar = grammar_of(name, Tools(b"", (F, G)))
    assert accepts(grammar, "Hello <b> [1]\n")
    assert accepts(grammar, ONE[name])
    if SYNTAXES[name].trigger:
        assert accepts(grammar, f"I look it up.\n{ONE[name]}")
    assert not accepts(grammar, ONE[name].replace("city", "town"))


def test_a_function_without_parameters_takes_any_object() -> None:
    grammar = grammar_of("mistral_named", Tools(b"", (G,), is_required=True))
    assert accepts(grammar, '[TOOL_CALLS]g[ARGS]{"a": [1]}')
    assert not accepts(grammar, "[TOOL_CALLS]g[ARGS][]")


def test_marks_that_are_special_tokens_are_named_by_their_ids() -> None:
    tools = Tools(b"", (F,), is_required=True)
    grammar = call_rules(tools, SYNTAXES["mistral_named"], {"[TOOL_CALLS]": 5, "[ARGS]": 32})
    assert "answer: <[5]> call (<[5]> call)*" in grammar
    assert 'call_0: "f" <[32]> %json' in grammar
    optional = call_rules(Tools(b"", (F,)), SYNTAXES["mistral"], {"[TOOL_CALLS]": 5})
    assert "head: TEXT <[5]>" in optional


def test_a_schema_that_names_no_type_is_one_of_objects_and_keeps_its_own_guidance() -> None:
    empty = grammar_of("mistral_named", Tools(b"", (Function("g", "{}"),), is_required=True))
    assert accepts(empty, '[TOOL_CALLS]g[ARGS]{"a": 1}')
    assert not accepts(empty, "[TOOL_CALLS]g[ARGS]5")
    tight = Function("g", '{"type": "object", "x-guidance": {"whitespace_flexible": false}}')
    assert '"whitespace_flexible":false' in grammar_of("hermes", Tools(b"", (tight,)))


KINDS = """{"type": "object", "required": ["city"], "properties": {
    "city": {"type": "string"}, "days": {"type": "integer"}, "unit": {"enum": ["C", "F"]}}}"""
TAGGED = {
    "qwen3_coder": (
        "<tool_call>\n<function=f>\n{0}</function>\n</tool_call>",
        "<parameter={0}>\n{1}\n</parameter>\n",
    ),
    "glm45": (
        "<tool_call>f\n{0}</tool_call>",
        "<arg_key>{0}</arg_key>\n<arg_value>{1}</arg_value>\n",
    ),
}


@pytest.mark.parametrize("name", TAGGED)
def test_arguments_between_tags_follow_their_schemas(name: str) -> None:
    call, parameter = TAGGED[name]
    function = Function("f", KINDS, is_strict=True)

    def written(**values: str) -> str:
        return call.format("".join(parameter.format(*each) for each in values.items()))

    for is_required in (True, False):
        grammar = grammar_of(name, Tools(b"", (function,), is_required=is_required))
        for right in (
            written(city="Paris <b>\n"),
            written(city="", days="3", unit="C"),
            f"{written(city='a')}\n{written(city='b', unit='F')}",
        ):
            assert accepts(grammar, right), right
        for wrong in (written(), written(city="a", days="many"), written(city="a", unit="K")):
            assert not accepts(grammar, wrong), wrong

"""Grammars of tool calls, against the library that enforces them, over a tokenizer of bytes."""

import json

import llguidance
import pytest

from baton.wire.failures import InvalidRequest
from services.gateway.openai.generation import Function, Tools
from services.gateway.tools.call_grammar import call_rules
from services.gateway.tools.call_syntax import SYNTAXES
from services.gateway.tools.tagged_schema import types_of

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
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
    f"<|tool_call_argument_begin|>{PARIS}<|tool_call_end|><|tool_calls_section_end|>",
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
    assert not accepts(grammar, ONE[name].replace("f", "h", 1).replace(".f", ".h"))
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


def texts_follow(schema: str, right: list[str], wrong: list[str]) -> None:
    """Check which texts of a parameter follow its schema, in each syntax with tags."""
    parameters = f'{{"type": "object", "properties": {{"a": {schema}}}, "required": ["a"]}}'
    function = Function("f", parameters, is_strict=True)
    for name, (call, parameter) in TAGGED.items():
        grammar = grammar_of(name, Tools(b"", (function,), is_required=True))
        for text in right:
            assert accepts(grammar, call.format(parameter.format("a", text))), (name, text)
        for text in wrong:
            assert not accepts(grammar, call.format(parameter.format("a", text))), (name, text)


@pytest.mark.parametrize(
    ("constraint", "right", "wrong"),
    [
        ('"pattern": "^[A-Z]{2}[0-9]+$"', ["AB1", "ZZ99"], ["ab1", "AB", "xAB1", ""]),
        ('"pattern": "[0-9]/[0-9]"', ["on 1/2", "3/4 </b>"], ["1-2", ""]),
        ('"pattern": "^a|b$"', ["axx", "xxb"], ["xax", "bx"]),
        ('"pattern": "^[|)]$"', ["|", ")"], ["x"]),
        (r'"pattern": "^a\\\\/\n$"', ["a\\/\n"], ["a/\n"]),
        ('"minLength": 2, "maxLength": 3', ["ab", "é€x"], ["a", "abcd"]),
        ('"minLength": 1', ["a", "a\nb" * 99], [""]),
        ('"format": "date"', ["2026-02-28"], ["tomorrow", "2026-13-01", "2026-02-28Z"]),
        ('"format": "date-time"', ["2026-02-28T10:00:00Z"], ["2026-02-28"]),
        ('"format": "email"', ["a.b@c.example"], ["a.b"]),
        ('"format": "ipv6"', ["::1", "fe80::1:2", "1:2:3:4:5:6:7:8"], ["1:2", "::g"]),
        ('"format": "uri"', ["https://a.example/b?c=d#e"], ["a b", "a.example"]),
        ('"format": "uuid", "pattern": "^0"', ["0" * 8 + "-0000" * 3 + "-" + "a" * 12], ["0"]),
        ('"format": "zzz", "x-guidance": {"lenient": true}', ["anything"], []),
        ('"const": "on"', ["on"], ["off", '"on"']),
    ],
)
def test_a_text_between_tags_follows_what_its_schema_says_of_strings(
    constraint: str, right: list[str], wrong: list[str]
) -> None:
    texts_follow(f'{{"type": "string", {constraint}}}', right, wrong)


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ('{"enum": ["a", "null", 3, null]}', ["a", "3", "null"], ["4", '"a"']),
        ('{"type": ["string", "null"], "minLength": 6}', ["abcdef", "null"], ["abc", "5"]),
        (
            '{"anyOf": [{"type": "string", "pattern": "^x"}, {"type": "integer"}]}',
            ["xy", "-5"],
            ["y"],
        ),
        ('{"anyOf": [{"type": "string"}, {"type": "null"}]}', ["xy", "null", ""], []),
        ('{"anyOf": [{"type": "integer"}, {"type": "null"}]}', ["5", "null"], ["five"]),
        (
            '{"oneOf": [{"type": "string", "maxLength": 2}, {"type": "array"}]}',
            ["ab", "[1, 2]"],
            ["abc"],
        ),
    ],
)
def test_a_value_between_tags_has_one_of_the_forms_that_its_schema_lists(
    schema: str, right: list[str], wrong: list[str]
) -> None:
    texts_follow(schema, right, wrong)


def function_with(definitions: dict[str, object], *names: str) -> Function:
    """A function with a parameter for each of these definitions."""
    properties = {f"p_{name}": {"$ref": f"#/$defs/{name}"} for name in names}
    schema = {"type": "object", "$defs": definitions, "properties": properties}
    return Function("f", json.dumps(schema), is_strict=True)


def either(*names: str) -> dict[str, object]:
    return {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in names]}


def test_definitions_that_name_each_other_are_read_once() -> None:
    twice = {f"d{number}": either(f"d{number + 1}", f"d{number + 1}") for number in range(30)}
    twice |= {"d30": {"type": "string", "pattern": "^x$"}}
    grammar = grammar_of("glm45", Tools(b"", (function_with(twice, "d0"),), is_required=True))
    call = "<tool_call>f\n<arg_key>p_d0</arg_key>\n<arg_value>{0}</arg_value>\n</tool_call>"
    assert accepts(grammar, call.format("x"))
    assert not accepts(grammar, call.format("y"))
    assert types_of({"$defs": twice, "$ref": "#/$defs/d0"}) == {"string"}


@pytest.mark.parametrize(
    "definitions",
    [
        {"a": either("a")},
        {"a": either("b"), "b": either("a")},
        {"a": {"type": {"b": 1}}},
        {"a": {"anyOf": [{"type": ["string", {"b": 1}], "pattern": "^x"}]}},
        {"a": either("d0"), **{f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(2000)}},
    ],
)
def test_definitions_that_lead_nowhere_admit_any_text(definitions: dict[str, object]) -> None:
    function = function_with(definitions, "a")
    grammar = grammar_of("glm45", Tools(b"", (function,), is_required=True))
    call = "<tool_call>f\n<arg_key>p_a</arg_key>\n<arg_value>hi</arg_value>\n</tool_call>"
    assert accepts(grammar, call)


def test_a_parameter_has_the_definitions_that_it_needs_and_all_together_are_bounded() -> None:
    small = {f"d{number}": {"type": "integer", "title": "t" * 99} for number in range(99)}
    rules = grammar_of("glm45", Tools(b"", (function_with(small, *small),), is_required=True))
    assert len(rules) < 99 * 1000
    large = {"d": {"type": "array", "items": {"$ref": "#/$defs/e"}}, "e": {"title": "t" * 60_000}}
    names = {f"d{number}": large["d"] for number in range(99)}
    functions = (function_with({**large, **names}, *names),)
    with pytest.raises(InvalidRequest, match="too long"):
        grammar_of("glm45", Tools(b"", functions, is_required=True))


@pytest.mark.parametrize(
    ("constraint", "named"),
    [
        ('"format": "zzz"', "format 'zzz'"),
        ('"not": {"const": "x"}', "not"),
        ('"maxLength": 5000', "maxLength '5000'"),
    ],
)
def test_what_cannot_be_enforced_of_a_text_between_tags_is_refused(
    constraint: str, named: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        texts_follow(f'{{"type": "string", {constraint}}}', [], [])
    assert named in caught.value.message
    assert caught.value.param == "tools"

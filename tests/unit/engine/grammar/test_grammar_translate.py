"""What clients write, in the library's words; and one-line reasons for what cannot be."""

import json

import llguidance
import pytest

from baton.engine.grammar.translate import GrammarRefused, ebnf_to_lark, to_library
from baton.engine.protocol.messages import Grammar


def library(kind: str, text: str = "") -> dict[str, object]:
    [grammar] = json.loads(to_library(Grammar(kind, text)))["grammars"]  # type: ignore[arg-type]
    return dict(grammar)


def test_json_gets_bounded_white_space_unless_the_schema_says_otherwise():
    plain = library("json_schema", '{"type": "string"}')["json_schema"]
    assert plain["x-guidance"]["whitespace_pattern"].startswith(" |")  # type: ignore[index]
    own = {"type": "string", "x-guidance": {"whitespace_pattern": "x"}}
    assert library("json_schema", json.dumps(own))["json_schema"] == own
    assert library("json_object")["json_schema"]["type"] == "object"  # type: ignore[index]


def test_digits_of_a_regex_are_ascii_and_slashes_are_no_delimiters():
    assert library("regex", r"\d+/\w") == {"lark_grammar": r"start: /[0-9]+\/\w/"}


def test_choices_are_one_terminal():
    text = library("choice", json.dumps(["yes", 'a "b"\n', "\u00fc"]))["lark_grammar"]
    assert text == 'start: CHOICE\nCHOICE: "yes" | "a \\"b\\"\\n" | "\u00fc"'


def test_a_grammar_cannot_pass_for_another_kind():
    assert library("ebnf", '{\nstart: "a"')["lark_grammar"] == '{\nstart: "a"'
    with pytest.raises(GrammarRefused, match="no rule named start"):
        to_library(Grammar("ebnf", 'root ::= "a"'))


def test_gbnf_becomes_lark():
    lark = ebnf_to_lark('root ::= "hi" ws name # greet\nws ::= [ \\t]+\nname ::= [a-z]+ ("!")?')
    assert 'start: "hi" WS NAME' in lark
    assert ebnf_to_lark('start: "a"') == 'start: "a"'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("hello", "neither a rule start"),
        ('main ::= "a"', "no rule named root"),
        ('root ::= "a', "end of input"),
        ("root ::= a{99999999999999999999", "Expected"),
        ("root ::= " + "(" * 5000, "nested too deeply"),
        ("root ::= item", "no rule named item"),
        ('root ::= start\nstart ::= "a"', "rules root and start are too much alike"),
        ('root ::= Start\nStart ::= "a"', "rules Start and root are too much alike"),
        ('root ::= a-b a_b\na-b ::= "a"\na_b ::= "b"', "rules a-b and a_b are too much alike"),
        ('root ::= "a"{\u00b2}', "invalid literal"),
        ('root ::= "' + "\\", "out of range"),
    ],
)
def test_bad_gbnf_is_refused_in_one_line(text: str, reason: str):
    with pytest.raises(GrammarRefused, match=reason) as caught:
        ebnf_to_lark(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("schema", ["[]", "true", "{", '{"x-guidance": 3}', "[" * 5000])
def test_what_is_no_schema_is_refused(schema: str):
    with pytest.raises(GrammarRefused):
        to_library(Grammar("json_schema", schema))


def test_reasons_are_short_and_say_the_cause():
    long = GrammarRefused("x\n" * 5000 + "\n<non-verbose/>")
    assert len(str(long)) < 250
    quoting = f"at 1(8): invalid regex {'(' * 999}\n  ^\nerror: too many parentheses\n  1 | start"
    assert str(GrammarRefused(quoting)) == "too many parentheses"


@pytest.mark.parametrize(
    ("grammar", "right", "wrong"),
    [
        (Grammar("json_object"), '{"a": 1}', "[1]"),
        (Grammar("json_schema", '{"type": "integer"}'), "12", "a"),
        (Grammar("regex", "[a-z]+"), "abc", "ABC"),
        (Grammar("choice", '["yes", "no"]'), "no", "maybe"),
        (Grammar("ebnf", '%llguidance {}\nstart: "x" TAIL\nTAIL: /[0-9]/'), "x1", "x"),
    ],
    ids=lambda value: value.kind if isinstance(value, Grammar) else "",
)
def test_a_form_stands_in_its_frame(grammar: Grammar, right: str, wrong: str):
    frame = "start: head @form\nhead[lazy]: /(.|\\n)*!/"
    text = to_library(Grammar(grammar.kind, grammar.text, frame))
    tokenizer = llguidance.LLTokenizer("byte")
    matcher = llguidance.LLMatcher(tokenizer, text)
    assert not matcher.get_error()

    def accepts(output: str) -> bool:
        own = matcher.deep_copy()
        tokens = tokenizer.tokenize_str(output)
        return own.try_consume_tokens(tokens) == len(tokens) and own.is_accepting()

    assert accepts(f"What?\n!{right}")
    assert not accepts(right)
    assert not accepts(f"!{wrong}")

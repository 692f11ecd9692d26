"""Tool calls in the ways of each family: read whole, and read in pieces of any size."""

import pytest

from services.gateway.openai.generation import CallDelta
from services.gateway.tools.call_parser import MAX_HEAD_CHARS, CallParser
from services.gateway.tools.call_syntax import SYNTAXES

ARGUMENTS = '{"city": "Par\\"}is", "days": [1, {"a": 2}]}'
_V3 = "<｜tool▁call▁begin｜>"
ONE = {
    "hermes": f'<tool_call>\n{{"name": "f", "arguments": {ARGUMENTS}}}\n</tool_call>',
    "llama3": f'{{"name": "f", "parameters": {ARGUMENTS}}}',
    "mistral": f'[TOOL_CALLS] [{{"name": "f", "arguments": {ARGUMENTS}}}]',
    "mistral_named": f"[TOOL_CALLS]f[ARGS]{ARGUMENTS}",
    "deepseek": f"<｜tool▁calls▁begin｜>{_V3}function<｜tool▁sep｜>f\n```json\n{ARGUMENTS}\n```"
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek_v31": f"<｜tool▁calls▁begin｜>{_V3}f<｜tool▁sep｜>{ARGUMENTS}"
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
}
TWO = {
    "hermes": f"{ONE['hermes']}\n" + ONE["hermes"].replace('"f"', '"g"'),
    "llama3": f"{ONE['llama3']}; " + ONE["llama3"].replace('"f"', '"g"'),
    "mistral": f'{ONE["mistral"][:-1]}, {{"name": "g", "arguments": {ARGUMENTS}, "id": "a}}"}}]',
    "mistral_named": f"{ONE['mistral_named']}[TOOL_CALLS]g[CALL_ID]abc[ARGS]{ARGUMENTS}",
    "deepseek": f"{ONE['deepseek'].removesuffix('<｜tool▁calls▁end｜>')}\n"
    + ONE["deepseek"].removeprefix("<｜tool▁calls▁begin｜>").replace(">f\n", ">g\n"),
    "deepseek_v31": f"{ONE['deepseek_v31'].removesuffix('<｜tool▁calls▁end｜>')}"
    f"{_V3}g<｜tool▁sep｜>{ARGUMENTS}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
}


def read(name: str, pieces: list[str]) -> tuple[str, list[tuple[str, str, str]]]:
    """The text of an answer, and of each call id, name and arguments."""
    parser = CallParser(SYNTAXES[name], lambda number: f"call_{number}")
    found = [*map(parser.feed, pieces), parser.flush()]
    calls: list[list[str]] = []
    for delta in (delta for _, deltas in found for delta in deltas):
        if delta.call_id:
            calls.append([delta.call_id, delta.name, ""])
        calls[delta.number][2] += delta.arguments
    return "".join(text for text, _ in found), [(a, b, c) for a, b, c in calls]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("name", ONE)
def test_calls_are_read_in_pieces_of_any_size(name: str, size: int) -> None:
    first, second = ("call_0", "f", ARGUMENTS), ("call_1", "g", ARGUMENTS)
    for written, expected in ((ONE[name], [first]), (TWO[name], [first, second])):
        pieces = [written[at : at + size] for at in range(0, len(written), size)]
        assert read(name, pieces) == ("", expected)


_KIMI_BEGIN, _KIMI_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"


def kimi_call(written: str) -> str:
    mark = "<|tool_call_argument_begin|>"
    return f"<|tool_call_begin|>{written}{mark}{ARGUMENTS}<|tool_call_end|>"


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_call_that_is_written_by_its_id_has_that_id(size: int) -> None:
    calls = [kimi_call(f" {each} ") for each in ("functions.f:0", "functions.a.b:1", "g")]
    written = f"I look.{_KIMI_BEGIN}{''.join(calls)}{_KIMI_END}"
    expected = [("functions.f:0", "f"), ("functions.a.b:1", "a.b"), ("call_2", "g")]
    pieces = [written[at : at + size] for at in range(0, len(written), size)]
    assert read("kimi_k2", pieces) == ("I look.", [(*each, ARGUMENTS) for each in expected])


def test_an_id_that_is_written_twice_is_that_of_the_first_call() -> None:
    written = f"{_KIMI_BEGIN}{kimi_call('functions.f:0') * 2}{_KIMI_END}"
    ids = [call_id for call_id, _, _ in read("kimi_k2", [written])[1]]
    assert ids == ["functions.f:0", "call_1"]


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize("name", [name for name in ONE if SYNTAXES[name].trigger])
def test_text_before_calls_is_text(name: str, size: int) -> None:
    written = f"I look it up < [.\n\n{ONE[name]}"
    pieces = [written[at : at + size] for at in range(0, len(written), size)]
    assert read(name, pieces) == ("I look it up < [.", [("call_0", "f", ARGUMENTS)])


@pytest.mark.parametrize(
    "text",
    [
        "Hello.\n",
        "{}",
        '{"a": 1}, and so on',
        "<tool_cal",
        "a < b [TOOL_CALLS",
        " \n",
        "{\n",
        "<|py",
    ],
)
@pytest.mark.parametrize("name", ONE)
def test_text_without_calls_comes_out_as_it_is(name: str, text: str) -> None:
    assert read(name, [text]) == (text, [])
    assert read(name, list(text)) == (text, [])


def test_what_only_begins_like_a_call_is_text() -> None:
    for text in (
        "<tool_call>no object",
        '<tool_call>{"arguments": {}}</tool_call>',
        "<tool_call>{]}",
    ):
        assert read("hermes", [text]) == (text, [])
    endless = "<tool_call>{" + " " * MAX_HEAD_CHARS
    assert read("hermes", [endless]) == (endless, [])


def test_arguments_come_as_they_are_written() -> None:
    parser = CallParser(SYNTAXES["hermes"], lambda number: f"call_{number}")
    assert parser.feed('<tool_call>{"name": "f", "arguments": {"a"') == (
        "",
        [CallDelta(0, "", "call_0", "f"), CallDelta(0, '{"a"')],
    )
    assert parser.feed(": 1") == ("", [CallDelta(0, ": 1")])


def test_an_answer_that_is_cut_keeps_what_came_of_its_call() -> None:
    written = '<tool_call>{"name": "f", "arguments": {"a": "b'
    assert read("hermes", [written]) == ("", [("call_0", "f", '{"a": "b')])


def test_other_orders_and_forms_of_the_object_are_read() -> None:
    swapped = '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call> Done.'
    assert read("hermes", list(swapped)) == ("Done.", [("call_0", "f", '{"a":1}')])
    encoded = '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>'
    assert read("hermes", list(encoded)) == ("", [("call_0", "f", '{"a": 1}')])
    bare = '<tool_call>{"name": "f"}</tool_call>'
    assert read("hermes", [bare]) == ("", [("call_0", "f", "{}")])


def test_llamas_tag_before_a_call_is_no_text() -> None:
    written = '<|python_tag|>{"name": "f", "parameters": {}}'
    assert read("llama3", list(written)) == ("", [("call_0", "f", "{}")])

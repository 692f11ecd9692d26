"""Answers in harmony, read wherever tokens are cut, and their calls."""

import random

import pytest

from services.gateway.reasoning.harmony_reasoning import MAX_HEADER_CHARS, HarmonyReasoning
from services.gateway.tools.call_parser import CallParser
from services.gateway.tools.call_syntax import SYNTAXES

ANALYSIS = "<|channel|>analysis<|message|>Look <up|> it.<|end|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>It is <b>sunny</b>.<|return|>"
CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": "<|"}<|call|>'
# The recipient may stand in the role as well.
CALL_BY_ROLE = ' to=functions.f<|channel|>commentary json<|message|>{"a": "<|"}<|call|>'
PREAMBLE = "<|start|>assistant<|channel|>commentary<|message|>First.<|end|>"
F = ("f", '{"a": "<|"}')
# Text, reasoning, answer and calls.
TRANSCRIPTS = {
    "final": (ANALYSIS + FINAL, "Look <up|> it.", "It is <b>sunny</b>.", []),
    "alone": (FINAL, "", "It is <b>sunny</b>.", []),
    "call": (f"{ANALYSIS}<|start|>assistant{CALL}", "Look <up|> it.", "", [F]),
    "call by role": (f"{ANALYSIS}<|start|>assistant{CALL_BY_ROLE}", "Look <up|> it.", "", [F]),
    "call at once": (CALL_BY_ROLE, "", "", [F]),
    "preamble": (f"{ANALYSIS}{PREAMBLE}<|start|>assistant{CALL}", "Look <up|> it.", "First.", [F]),
    "two analyses": (f"{ANALYSIS}<|start|>assistant{ANALYSIS}", "Look <up|> it.\n" * 2, "", []),
    "another tool": ("<|channel|>analysis to=python code<|message|>1+1<|call|>", "1+1", "", []),
    "no format": ("Hello <|", "", "Hello <|", []),
    "no format at first": (f'"{FINAL}', "", '"\nIt is <b>sunny</b>.', []),
    "cut off": ("<|channel|>analysis<|message|>Hm <|en", "Hm <|en", "", []),
    "cut off early": ("<|channel|>ana", "", "", []),
}


def read(tokens: list[str]) -> tuple[str, str, list[tuple[str, str]], HarmonyReasoning]:
    reader = HarmonyReasoning(has_tools=True)
    parser = CallParser(SYNTAXES["harmony"], str)
    found = []
    reasoning = ""
    for token in tokens:
        found.append(parser.feed(reader.feed(token)))
        reasoning += reader.taken()
    found += [parser.feed(reader.finish("")), parser.flush()]
    calls: list[list[str]] = []
    for delta in (delta for _, deltas in found for delta in deltas):
        if delta.call_id:
            calls.append([delta.name, ""])
        calls[delta.number][1] += delta.arguments
    answer = "".join(text for text, _ in found)
    return reasoning + reader.taken(), answer, [(a, b) for a, b in calls], reader


@pytest.mark.parametrize("transcript", TRANSCRIPTS.values(), ids=TRANSCRIPTS)
def test_the_parts_are_the_same_wherever_the_text_is_cut(
    transcript: tuple[str, str, str, list[tuple[str, str]]],
) -> None:
    text, reasoning, answer, calls = transcript
    expected = (reasoning.removesuffix("\n"), answer, calls)
    for cut in range(len(text) + 1):
        assert read([text[:cut], text[cut:]])[:3] == expected
    assert read(list(text))[:3] == expected
    rng = random.Random(text)
    for _ in range(50):
        cuts = sorted(rng.choices(range(len(text) + 1), k=6))
        tokens = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert read(tokens)[:3] == expected


def test_tokens_of_the_reasoning_are_counted_and_those_of_other_headers_are_not() -> None:
    analysis = ["<|channel|>", "analysis", "<|message|>", "Hm", ".", "<|end|>"]
    final = ["<|start|>", "assistant", "<|channel|>", "final", "<|message|>", "Yes", "."]
    assert read([*analysis, *final])[3].num_tokens == 6
    assert read(final)[3].num_tokens == 0
    reader = HarmonyReasoning(has_tools=False)
    belong = []
    for token in [*analysis, *final]:
        reader.feed(token)
        belong.append(reader.is_answer)
    assert belong == [False] * 11 + [True] * 2


def test_a_call_that_was_not_asked_for_is_text() -> None:
    reader = HarmonyReasoning(has_tools=False)
    assert reader.feed(CALL) == '{"a": "<|"}'


@pytest.mark.parametrize("start", ["", "<|channel|>final "])
def test_a_header_without_an_end_is_text(start: str) -> None:
    reader = HarmonyReasoning(has_tools=False)
    if not start:
        assert reader.feed("<|channel|>final<|message|>Yes<|end|>") == "Yes"
    assert reader.feed(start + "x" * (MAX_HEADER_CHARS + 1)).endswith("x")

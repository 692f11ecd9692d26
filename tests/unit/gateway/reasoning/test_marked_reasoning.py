"""Reasoning between marks, told from the answer wherever tokens are cut."""

import random

import pytest

from services.gateway.reasoning.marked_reasoning import MarkedReasoning, Place, place_behind
from services.gateway.reasoning.reasoning_syntax import SYNTAXES

THINK = SYNTAXES["think"]
# Syntax, the place at which the answer begins, its text, its reasoning and the rest.
TRANSCRIPTS = {
    "qwen3": ("think", Place.EITHER, "<think>\nHm </b> <\n</think>\n\nYes\n", "Hm </b> <", "Yes\n"),
    "opened": ("think", Place.REASONING, "\nHm, </thin\n\n</think>\n\nYes", "Hm, </thin", "Yes"),
    "closed": ("think", Place.ANSWER, "<b>Yes</think>", "", "<b>Yes</think>"),
    "magistral": ("mistral", Place.EITHER, "[THINK]1 [2[/THINK]Yes", "1 [2", "Yes"),
    "empty": ("think", Place.EITHER, "<think>\n\n</think>\n\nYes", "", "Yes"),
    "none": ("think", Place.EITHER, " <thing> Yes <think>no</think>", "", None),
    "cut off": ("think", Place.EITHER, "<think>\nHm </thi", "Hm </thi", ""),
    "not begun": ("think", Place.EITHER, "\n<thi", "", "\n<thi"),
}


def read(name: str, place: Place, tokens: list[str]) -> tuple[str, str, MarkedReasoning]:
    reader = MarkedReasoning(SYNTAXES[name], place)
    answer, reasoning = "", ""
    for token in tokens:
        answer += reader.feed(token)
        reasoning += reader.taken()
    answer += reader.finish("")
    return reasoning + reader.taken(), answer, reader


@pytest.mark.parametrize("transcript", TRANSCRIPTS.values(), ids=TRANSCRIPTS)
def test_the_parts_are_the_same_wherever_the_text_is_cut(
    transcript: tuple[str, Place, str, str, str | None],
) -> None:
    name, place, text, reasoning, answer = transcript
    expected = (reasoning, text if answer is None else answer)
    for cut in range(len(text) + 1):
        assert read(name, place, [text[:cut], text[cut:]])[:2] == expected
    assert read(name, place, list(text))[:2] == expected
    rng = random.Random(text)
    for _ in range(50):
        cuts = sorted(rng.choices(range(len(text) + 1), k=6))
        tokens = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert read(name, place, tokens)[:2] == expected


def test_tokens_of_the_reasoning_and_its_marks_are_counted() -> None:
    tokens = ["<think>", "\n", "Hm", ".", "\n", "</think>", "\n\n", "Yes", "."]
    assert read("think", Place.EITHER, tokens)[2].num_tokens == 6
    assert read("think", Place.REASONING, tokens[1:])[2].num_tokens == 5
    assert read("think", Place.EITHER, ["\n", "<", "b", ">", "Hm"])[2].num_tokens == 0
    assert read("think", Place.EITHER, ["\n", "<", "th", "ink>", "Hm"])[2].num_tokens == 5


def test_reasoning_comes_as_it_is_written() -> None:
    reader = MarkedReasoning(THINK, Place.REASONING)
    came = []
    for token in ("\n", "One", " two", "<", "three"):
        assert reader.feed(token) == ""
        assert not reader.is_answer
        came.append(reader.taken())
    assert came == ["", "One", " two", "", "<three"]


@pytest.mark.parametrize(
    ("prompt", "place"),
    [
        ("<|assistant|><think>\n", Place.REASONING),
        ("assistant\n<think>\n\n</think>\n\n", Place.ANSWER),
        ("What is <think>?<|im_end|>\nassistant\n", Place.EITHER),
    ],
)
def test_the_prompt_says_where_the_answer_begins(prompt: str, place: Place) -> None:
    assert place_behind(prompt, THINK) is place

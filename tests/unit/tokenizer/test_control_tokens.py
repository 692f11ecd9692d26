"""Control tokens: finding them, marking them in literals, telling written from spelled ones."""

import re

from hypothesis import given
from hypothesis import strategies as st

from services.tokenizer.control_tokens import ControlMarks, control_tokens, trie_pattern

ADDED = [("<s>", True), ("<think>", False), ("<unused>", False), ("\n\n", False)]


def test_special_tokens_are_always_control_tokens():
    assert control_tokens(ADDED, None, "") == ["<s>"]


def test_added_tokens_are_control_tokens_when_the_template_spells_them_out():
    assert control_tokens(ADDED, None, "say <think>\n\n") == ["<s>", "<think>"]


def test_models_own_list_replaces_the_search_in_the_template():
    assert control_tokens(ADDED, ["<unused>"], "say <think>") == ["<s>", "<unused>"]


@given(st.lists(st.text("ab<|", min_size=1, max_size=5), max_size=8), st.text("ab<|", max_size=30))
def test_trie_pattern_matches_like_an_alternation_with_the_longest_word_first(words, text):
    longest_first = sorted(set(words), key=len, reverse=True)
    alternation = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
    found = [match.span() for match in re.finditer(trie_pattern(words), text)]
    assert found == [match.span() for match in alternation.finditer(text)]


def test_pattern_of_thousands_of_words_is_no_long_alternation():
    pattern = re.compile(trie_pattern(f"<unused{i}>" for i in range(6000)))
    assert pattern.search("<unused5999>").span() == (0, 12)
    assert len(pattern.pattern) < 40_000


def test_marked_literal_is_found_and_unmarks_to_itself():
    marks = ControlMarks(["<|a|>", "<s>"])
    literal = "x <|a|>y\n<s>"
    marked = marks.mark_literal(literal)
    assert marks.unmark(marked) == literal
    assert marks.written_spans(marked) == [2, 7, 9, 12]
    assert marks.written_spans(literal) == []
    assert marks.spelled_spans(literal) == [2, 7, 9, 12]


def test_token_written_in_two_literals_is_found():
    marks = ControlMarks(["<|im_start|>"])
    written = marks.mark_literal("x<|im_") + marks.mark_literal("start|>y")
    assert marks.written_spans(written) == [1, 13]


def test_token_built_around_a_role_is_found_and_around_other_words_is_not():
    marks = ControlMarks(["<|user|>", "<|end|>"])
    opening, closing = marks.mark_literal("<|"), marks.mark_literal("|>")
    assert marks.written_spans(opening + "user" + closing) == [0, 8]
    assert marks.written_spans(opening + "end" + closing) == []


def test_half_written_token_completed_by_a_request_is_not_found():
    marks = ControlMarks(["<|end|>"])
    assert marks.written_spans(marks.mark_literal("<|") + "end|>") == []
    assert marks.written_spans("<|end" + marks.mark_literal("|>")) == []


def test_words_of_letters_are_not_taken_for_fragments():
    marks = ControlMarks(["STOP"])
    assert marks.mark_literal("S") == "S"
    assert marks.mark_literal("STOP") != "STOP"


def test_whitespace_inside_a_token_stays_trimmable():
    marks = ControlMarks(["<|a|>\n"])
    assert marks.mark_literal("<|a|>\n").endswith("\n")

"""Runs are found wherever they lie, and exactly from one character too many."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.tokenizer.encoder import has_run_longer_than


@given(st.text("a_ \n.<日", max_size=60), st.integers(1, 12))
def test_agrees_with_looking_at_every_run(text: str, max_chars: int):
    runs = re.findall(r"\w+|\s+|[^\w\s]+", text)
    assert has_run_longer_than(text, max_chars) == any(len(run) > max_chars for run in runs)


@pytest.mark.parametrize("char", ["a", "_", " ", "\n", ".", "日", "\u0301", "😀"])
@pytest.mark.parametrize("offset", [0, 1, 499, 500, 501, 777])
def test_run_of_one_character_is_found_at_any_offset(char: str, offset: int):
    before = ("x ." * 999)[:offset]
    after = " x." * 500
    assert has_run_longer_than(before + "|a" + char * 1002 + after, 1000)
    assert not has_run_longer_than(before + char * 400 + after, 1000)


def test_empty_text_has_no_run():
    assert not has_run_longer_than("", 1)

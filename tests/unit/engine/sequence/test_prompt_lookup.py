"""What an NgramIndex proposes, and that it does so at a bounded cost."""

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from baton.engine.sequence import prompt_lookup as ngram
from baton.engine.sequence.prompt_lookup import MAX_ENTERED, MIN_MATCH, NgramIndex


def tokens(*values: int) -> NDArray[np.uint32]:
    return np.array(values, np.uint32)


def naive(values: list[int], num_tokens: int) -> set[tuple[int, ...]]:
    """Continuations of all earlier places whose match is as long as the longest one."""
    lengths = {}
    for place in range(MIN_MATCH, len(values)):
        length = 0
        while length < place and values[place - 1 - length] == values[-1 - length]:
            length += 1
        lengths[place] = length
    best = max(lengths.values(), default=0)
    if best < MIN_MATCH:
        return {()}
    found = set()
    for place in (place for place, length in lengths.items() if length == best):
        guess = values[place : place + num_tokens]
        while len(guess) < num_tokens:
            guess.append(guess[len(guess) - (len(values) - place)])
        found.add(tuple(guess))
    return found


def test_what_followed_the_longest_match_is_proposed():
    index = NgramIndex()
    values = tokens(9, 1, 2, 3, 70, 71, 5, 1, 2, 3, 80, 81, 9, 1, 2, 3)
    assert index.propose(values, 2) == (70, 71)


def test_of_equally_long_matches_the_newest_counts():
    assert NgramIndex().propose(tokens(1, 2, 3, 7, 8, 1, 2, 3, 9, 8, 1, 2, 3), 1) == (9,)


def test_a_sequence_that_repeats_itself_goes_on_repeating():
    assert NgramIndex().propose(tokens(4, 5, 4, 5, 4, 5), 5) == (4, 5, 4, 5, 4)
    assert NgramIndex().propose(tokens(6, 6, 6, 6), 3) == (6, 6, 6)


@pytest.mark.parametrize("values", [(), (1, 2), (1, 2, 3), (1, 2, 3, 4, 5, 6), (1, 2, 9, 1, 2)])
def test_nothing_is_proposed_without_a_match(values: tuple[int, ...]):
    assert NgramIndex().propose(tokens(*values), 4) == ()


def test_it_finds_what_a_scan_finds_while_the_sequence_grows(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ngram, "MAX_CANDIDATES", 10_000)
    rng = random.Random(1)
    values = [rng.randrange(3) for _ in range(5)]
    index = NgramIndex()
    while len(values) < 120:
        guess = index.propose(tokens(*values), 4)
        assert guess in naive(values, 4)
        values += [rng.randrange(3) for _ in range(rng.randrange(1, 4))]


def test_a_long_prompt_is_indexed_over_several_calls():
    index = NgramIndex()
    values = np.arange(2 * MAX_ENTERED + 100, dtype=np.uint32)
    values[-MIN_MATCH:] = values[:MIN_MATCH]
    assert index.propose(values, 2) == ()
    assert index.propose(values, 2) == ()
    assert index.propose(values, 2) == (MIN_MATCH, MIN_MATCH + 1)

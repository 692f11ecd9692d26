"""Guesses a sequence's next tokens from its own past: what followed its last tokens before.

Prompt lookup (Saxena 2023; n-gram speculation in vLLM), without a scan: an index of all places by
the MIN_MATCH tokens before them grows with the sequence, so a guess costs the same at any length.
Answers that repeat their prompt (summaries, edits, code, extraction) are guessed well, free text
seldom. Knows no engine; tokens in, tokens out.
"""

import numpy as np
from numpy.typing import NDArray

MIN_MATCH = 3
# Matches are told apart up to this length.
MAX_MATCH = 32
# Of the places where the last MIN_MATCH tokens stood, the newest ones are compared.
MAX_CANDIDATES = 4
# Tokens that one call enters into the index (1 ms); a long prompt takes several calls.
MAX_ENTERED = 2048

_TOKEN_BITS = 32
_KEY_MASK = (1 << MIN_MATCH * _TOKEN_BITS) - 1


# Steps without a guess after a sequence's first wrong one; they double with each further one.
FIRST_REST = 1
MAX_REST = 32


class NgramIndex:
    """Of one sequence, whose tokens only grow. A place is the index of the token that follows."""

    def __init__(self) -> None:
        # By the MIN_MATCH tokens before it, as one number: the newest place but the end.
        self._newest: dict[int, int] = {}
        # By place, the one before it with the same tokens; -1 = none.
        self._earlier: list[int] = [-1] * MIN_MATCH
        self._num_entered = 0
        # The last MIN_MATCH tokens that were entered.
        self._key = 0

    def propose(self, tokens: NDArray[np.uint32], num_tokens: int) -> tuple[int, ...]:
        """What may follow `tokens`, all that the sequence has: `num_tokens` tokens, or none."""
        self._enter(tokens[self._num_entered :][:MAX_ENTERED].tolist())
        if self._num_entered < len(tokens) or num_tokens < 1:
            return ()
        place = self._find(tokens)
        if place < 0:
            return ()
        # Where the match reaches into the guess, the sequence repeats itself: so does the guess.
        period = len(tokens) - place
        guess: list[int] = tokens[place : place + num_tokens].tolist()
        while len(guess) < num_tokens:
            guess.append(guess[len(guess) - period])
        return tuple(guess)

    def _enter(self, tokens: list[int]) -> None:
        key, newest = self._key, self._newest
        for place, token in enumerate(tokens, self._num_entered):
            if place >= MIN_MATCH:
                self._earlier.append(newest.get(key, -1))
                newest[key] = place
            key = (key << _TOKEN_BITS | token) & _KEY_MASK
        self._key = key
        self._num_entered += len(tokens)

    def _find(self, tokens: NDArray[np.uint32]) -> int:
        """The place behind the longest match of the last tokens, the newest of equals; -1 = none.

        With fewer than MIN_MATCH tokens there is no place at all.
        """
        place = self._newest.get(self._key, -1)
        best, best_length = -1, 0
        for _ in range(MAX_CANDIDATES):
            if place < 0:
                break
            length = _match_length(tokens, place)
            if length > best_length:
                best, best_length = place, length
            place = self._earlier[place]
        return best


def _match_length(tokens: NDArray[np.uint32], place: int) -> int:
    """How many tokens before `place` equal the last ones, up to MAX_MATCH."""
    num = min(MAX_MATCH, place)
    differs = tokens[place - num : place][::-1] != tokens[len(tokens) - num :][::-1]
    first = int(differs.argmax())
    return first if differs[first] else num


class PromptLookup:
    """How well one sequence can be guessed, learned from what became of its last draft."""

    def __init__(self, max_tokens: int) -> None:
        self._index = NgramIndex()
        self._max_tokens = max_tokens
        self._num_ahead = max_tokens
        self._num_drafted = 0
        self._num_tokens_then = 0
        self._num_rests = 0
        self._rest = FIRST_REST

    def propose(self, tokens: NDArray[np.uint32], limit: int) -> tuple[int, ...]:
        """At most `limit` tokens that may follow `tokens`, all that the sequence has."""
        self._learn(len(tokens))
        if self._num_rests > 0:
            self._num_rests -= 1
            return ()
        num_tokens = min(limit, self._num_ahead)
        draft = self._index.propose(tokens, num_tokens)
        self._num_drafted, self._num_tokens_then = len(draft), len(tokens)
        return draft

    def _learn(self, num_tokens: int) -> None:
        num_drafted, self._num_drafted = self._num_drafted, 0
        num_accepted = num_tokens - self._num_tokens_then - 1
        if num_drafted == 0 or num_accepted < 0:
            return
        if num_accepted == num_drafted:
            self._num_ahead = min(2 * self._num_ahead, self._max_tokens)
        else:
            self._num_ahead = max(1, num_accepted)
        if num_accepted:
            self._rest = FIRST_REST
        else:
            self._num_rests = self._rest
            self._rest = min(2 * self._rest, MAX_REST)

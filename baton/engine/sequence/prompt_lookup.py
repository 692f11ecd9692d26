"""Guesses a sequence's next tokens from its own past: what followed its last tokens before.

Prompt lookup (Saxena 2023; n-gram speculation in vLLM), without a scan. An index of all positions,
by the MIN_MATCH tokens before them, grows with the sequence: a guess costs the same at any length.
Answers that repeat their prompt (summaries, edits, code, extraction) are guessed well, free text
seldom. Knows no engine; tokens in, tokens out.
"""

import numpy as np
from numpy.typing import NDArray

MIN_MATCH = 3
# Matches are compared up to this length.
MAX_MATCH = 32
# The newest so many positions where the last MIN_MATCH tokens stood are compared.
MAX_CANDIDATES = 4
# Tokens that one call enters into the index (1 ms); a long prompt takes several calls.
MAX_ENTERED = 2048

_TOKEN_BITS = 32
_KEY_MASK = (1 << MIN_MATCH * _TOKEN_BITS) - 1


# Steps without a guess after a sequence's first wrong one; they double with each further one.
FIRST_REST = 1
MAX_REST = 32


class NgramIndex:
    """The index of one sequence, which only grows. A match has the position of the next token."""

    def __init__(self) -> None:
        # By the MIN_MATCH tokens before it, as one number: the newest position but the end.
        self._newest: dict[int, int] = {}
        # By position, the one before it with the same tokens.
        self._earlier: list[int | None] = [None] * MIN_MATCH
        self._num_entered = 0
        # The last MIN_MATCH tokens that were entered.
        self._key = 0

    def propose(self, tokens: NDArray[np.uint32], num_tokens: int) -> tuple[int, ...]:
        """Guess what follows `tokens`, all that the sequence has: `num_tokens` tokens, or none."""
        self._enter(tokens[self._num_entered :][:MAX_ENTERED].tolist())
        if self._num_entered < len(tokens) or num_tokens < 1:
            return ()
        position = self._find(tokens)
        if position is None:
            return ()
        # Where the match reaches into the guess, the sequence repeats itself: so does the guess.
        period = len(tokens) - position
        guess: list[int] = tokens[position : position + num_tokens].tolist()
        while len(guess) < num_tokens:
            guess.append(guess[len(guess) - period])
        return tuple(guess)

    def _enter(self, tokens: list[int]) -> None:
        key, newest = self._key, self._newest
        for position, token in enumerate(tokens, self._num_entered):
            if position >= MIN_MATCH:
                self._earlier.append(newest.get(key))
                newest[key] = position
            key = (key << _TOKEN_BITS | token) & _KEY_MASK
        self._key = key
        self._num_entered += len(tokens)

    def _find(self, tokens: NDArray[np.uint32]) -> int | None:
        """The position behind the longest match of the last tokens, the newest of equals.

        None without a match, and with fewer than MIN_MATCH tokens.
        """
        position = self._newest.get(self._key)
        best, best_length = None, 0
        for _ in range(MAX_CANDIDATES):
            if position is None:
                break
            length = _match_length(tokens, position)
            if length > best_length:
                best, best_length = position, length
            position = self._earlier[position]
        return best


def _match_length(tokens: NDArray[np.uint32], position: int) -> int:
    """The number of tokens before `position` that equal the last ones, up to MAX_MATCH."""
    num = min(MAX_MATCH, position)
    differs = tokens[position - num : position][::-1] != tokens[len(tokens) - num :][::-1]
    first = int(differs.argmax())
    return first if differs[first] else num


class PromptLookup:
    """Guesses for one sequence, as many as its last draft has shown to be worth it."""

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

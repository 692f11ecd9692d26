"""Counts the tokens that a sequence has had, for penalties; once, then as it grows.

A history of 100,000 tokens is not counted again for each new one: counts are kept by sequence and
grow with it. They are rebuilt when they were dropped; drafts are counted on top and never kept.
"""

from collections.abc import Sequence

import numpy as np

# Otherwise np.unique imports it in its first call, in the middle of a step.
import numpy.ma
from numpy.typing import NDArray

from baton.engine.protocol.batch import TokenHistory

# Beyond twice the rows of a step, counts of sequences that were not asked for lately are dropped.
MIN_KEPT = 64

Counts = tuple[NDArray[np.int64], NDArray[np.float32]]  # distinct token ids, uses in the output


class TokenCounts:
    """Distinct tokens of one sequence in order of first use, with their uses in the output."""

    __slots__ = ("_counts", "_ids", "_slots", "num_tokens")

    def __init__(self, history: TokenHistory) -> None:
        self._ids = np.unique(history.tokens[: history.num_prompt_tokens]).astype(np.int64)
        self._counts = np.zeros(len(self._ids), np.float32)
        self._slots = {token: slot for slot, token in enumerate(self._ids.tolist())}
        self.num_tokens = history.num_prompt_tokens

    def update(self, history: TokenHistory) -> None:
        """Count what is new in `history.tokens`, which begins with everything counted so far."""
        for token in history.tokens[self.num_tokens :].tolist():
            slot = self._slot(token)
            self._counts[slot] += 1
        self.num_tokens = len(history.tokens)

    def view(self) -> Counts:
        """Valid until the next update."""
        num = len(self._slots)
        return self._ids[:num], self._counts[:num]

    def with_draft(self, draft: Sequence[int]) -> Counts:
        """The counts as they would be after `draft`; copies."""
        ids, counts = self.view()
        fresh = list(dict.fromkeys(token for token in draft if token not in self._slots))
        slots = {token: len(ids) + index for index, token in enumerate(fresh)}
        counts = np.append(counts, np.zeros(len(fresh), np.float32))
        for token in draft:
            counts[slots[token] if token in slots else self._slots[token]] += 1
        return np.append(ids, np.array(fresh, np.int64)), counts

    def _slot(self, token: int) -> int:
        slot = self._slots.get(token)
        if slot is None:
            slot = self._slots[token] = len(self._slots)
            if slot == len(self._ids):
                self._ids = np.resize(self._ids, 2 * slot + 16)
                self._counts = np.resize(self._counts, 2 * slot + 16)
            self._ids[slot], self._counts[slot] = token, 0
        return slot


class CountsCache:
    """Counts by sequence, least recently used first."""

    def __init__(self) -> None:
        self._by_seq: dict[int, TokenCounts] = {}

    def __len__(self) -> int:
        return len(self._by_seq)

    def counts_of(self, histories: Sequence[TokenHistory]) -> list[Counts]:
        """Counts of each history; valid until the next call."""
        counts = [self._counts(history) for history in histories]
        for seq_id in list(self._by_seq)[: -max(MIN_KEPT, 2 * len(histories))]:
            del self._by_seq[seq_id]
        return counts

    def _counts(self, history: TokenHistory) -> Counts:
        known = self._by_seq.pop(history.seq_id, None)
        if known is None or known.num_tokens > len(history.tokens):
            known = TokenCounts(history)
        self._by_seq[history.seq_id] = known
        known.update(history)
        return known.with_draft(history.draft) if history.draft else known.view()

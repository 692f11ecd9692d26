"""The state of one sequence's grammar: the output tokens taken so far, and the next one's mask.

`begin`, `advance` and `look_ahead` run in the mask thread, one at a time for each state; `is_ready`
says whether the engine may look. Masks are computed without the GIL. Taking a token keeps it, for
some us (1.5 ms was the most within the compiler's limits).
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

import numpy as np

from baton.engine.grammar.compiler import error_of, fill_mask
from baton.engine.grammar.translate import GrammarRefused

if TYPE_CHECKING:
    from llguidance import LLMatcher

# Processor time that one sequence's grammar may take in all. A usual token takes 10 to 300 us; the
# library's own limits end one at some 10 ms.
MAX_SPENT_S = 20.0
ALL_ALLOWED = -1  # a word of a mask


class GrammarState:
    """`mask` `[num_words]`, `ahead` `[num_rows, num_words]`, `fault`: valid while `is_ready`."""

    def __init__(self, num_words: int, cpu_clock: Callable[[], float]) -> None:
        self.mask = np.full(num_words, ALL_ALLOWED, np.int32)
        self.ahead = self.mask[None]
        # Why no token can follow any more.
        self.fault: str | None = None
        # Seconds of processor time that the work has taken.
        self.spent_s = 0.0
        # Output tokens that were handed to `begin` and `advance`.
        self.num_tokens = 0
        # Not ready when a step needed it.
        self.is_late = False
        # Off for good once that made it late: what is slow must not be tried again and again.
        self.can_look_ahead = True
        # The newest work; not done before `begin` is.
        self.work: Future[None] = Future()
        self._matcher: LLMatcher
        self._cpu_clock = cpu_clock

    @property
    def is_ready(self) -> bool:
        return self.work.done()

    def begin(self, compiled: "Future[LLMatcher]", tokens: Sequence[int]) -> None:
        """Take a copy of the grammar, which has been compiled, and the output tokens so far."""
        try:
            self._matcher = compiled.result().deep_copy()
        except GrammarRefused as error:
            self.fault = str(error)
        else:
            self.advance(tokens)

    def advance(self, tokens: Sequence[int]) -> None:
        """Take output tokens and work out which ones may follow."""
        began_at = self._cpu_clock()
        for token in tokens:
            if not self._matcher.consume_token(token):
                break
        fill_mask(self._matcher, self.mask)
        self._count(began_at)

    def look_ahead(self, draft: Sequence[int]) -> None:
        """Fill `ahead` for the next token and those after each token of `draft`, as far as allowed.

        Rows behind a token that the grammar does not allow stay free: such a token is not sampled.
        The state itself does not move.
        """
        began_at = self._cpu_clock()
        self.ahead = np.full((len(draft) + 1, len(self.mask)), ALL_ALLOWED, np.int32)
        self.ahead[0] = self.mask
        num_taken = 0
        for token in draft:
            if not self._matcher.try_consume_tokens([token]):
                break
            num_taken += 1
            fill_mask(self._matcher, self.ahead[num_taken])
        self._matcher.rollback(num_taken)
        self._count(began_at)

    def _count(self, began_at: float) -> None:
        self.spent_s += self._cpu_clock() - began_at
        if self._matcher.is_error():
            self.fault = error_of(self._matcher)
        elif self.spent_s > MAX_SPENT_S:
            self.fault = f"the grammar takes more than {MAX_SPENT_S:g} s of processor time"

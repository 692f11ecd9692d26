"""The prompts that workers were sent and have not computed yet: their blocks will be there soon.

A worker reports a block when it is computed, which may be seconds after the pick. Requests with the
same new beginning come closer together than that: the children of an agent, the choices of an
evaluation. Only a part of a prompt's hashes is kept, the farther from its beginning the fewer: a
hash covers everything before it. What was cached at the pick is the business of the prefix index.
"""

import heapq
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import count
from typing import NamedTuple

from baton.system.clock import Clock
from services.router.pick.pick_request import MAX_PROMPT_TOKENS

STRIDE_TOKENS = 512
# After the predicted end of its prefill a prompt counts for so much longer, and no longer in all.
_SLACK_S = 1.0
_MAX_S = 60.0


class SentPrompt(NamedTuple):
    """A prompt on its way to a worker, which will have computed it in `expected_s`."""

    endpoint: str
    hashes: Sequence[int]
    num_cached_blocks: int
    expected_s: float


class SentMarks(NamedTuple):
    """The blocks that are kept of a prompt on its way."""

    endpoint: str
    marks: list[int]
    expected_s: float


class PromptsOnTheWay:
    """The blocks that workers are about to cache."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # How many prompts will leave this block at each endpoint.
        self._coming: dict[int, dict[str, int]] = {}
        self._ends: list[tuple[float, int, str, list[int]]] = []
        self._numbers = count()

    def take(self, prompt: SentPrompt, block_size: int) -> SentMarks:
        """Expect the prompt's blocks at its worker from now on; returns those that are kept."""
        marks = [
            block_hash
            for num_blocks, block_hash in _marks(prompt.hashes, block_size)
            if num_blocks > prompt.num_cached_blocks
        ]
        sent = SentMarks(prompt.endpoint, marks, prompt.expected_s)
        self.expect(sent)
        return sent

    def expect(self, sent: SentMarks) -> None:
        """Expect these blocks at their worker from now on."""
        for block_hash in sent.marks:
            workers = self._coming.setdefault(block_hash, {})
            workers[sent.endpoint] = workers.get(sent.endpoint, 0) + 1
        until = self._clock.now() + min(sent.expected_s + _SLACK_S, _MAX_S)
        heapq.heappush(self._ends, (until, next(self._numbers), sent.endpoint, sent.marks))

    def match(self, hashes: Sequence[int], block_size: int) -> dict[str, int]:
        """Count a prompt's first blocks that workers will have, in steps; 0 is left out."""
        self._expire()
        depths: dict[str, int] = {}
        if self._coming:
            for num_blocks, block_hash in _marks(hashes, block_size):
                if block_hash in self._coming:
                    depths.update(dict.fromkeys(self._coming[block_hash], num_blocks))
        return depths

    def _expire(self) -> None:
        now = self._clock.now()
        while self._ends and self._ends[0][0] <= now:
            _, _, endpoint, marks = heapq.heappop(self._ends)
            for block_hash in marks:
                workers = self._coming[block_hash]
                workers[endpoint] -= 1
                if not workers[endpoint]:
                    del workers[endpoint]
                if not workers:
                    del self._coming[block_hash]


def _grid() -> Iterator[int]:
    """Yield the marks in strides: each one first, then a tenth farther each time."""
    mark = 1
    while mark < MAX_PROMPT_TOKENS // STRIDE_TOKENS:
        yield mark
        mark = max(mark + 1, mark * 11 // 10)


_GRID = tuple(_grid())
# Blocks of one prompt that are kept at most.
MAX_MARKS = len(_GRID)


def _marks(hashes: Sequence[int], block_size: int) -> list[tuple[int, int]]:
    """The hashes that are kept, each with the number of blocks that it covers."""
    stride = max(1, STRIDE_TOKENS // block_size)
    num_marks = bisect_right(_GRID, len(hashes) // stride)
    return [(mark * stride, hashes[mark * stride - 1]) for mark in _GRID[:num_marks]]

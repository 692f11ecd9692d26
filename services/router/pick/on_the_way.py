"""The prompts that workers were sent and have not computed yet: their blocks will be there soon.

A worker reports a block when it is computed, which may be seconds after the pick. Requests with the
same new beginning come closer together than that: the children of an agent, the choices of an
evaluation. Only a part of a prompt's hashes is kept, the farther from its beginning the fewer: a
hash covers everything before it. What was cached at the pick is the business of the prefix index.
"""

import heapq
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count, takewhile
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


@dataclass(slots=True, eq=False)
class _Coming:
    """The blocks of a prompt on its way, of which it has the first `num_shared` in common with
    others."""

    endpoint: str
    marks: Sequence[int]
    num_shared: int = 0


class PromptsOnTheWay:
    """The blocks that workers are about to cache.

    Most prompts have most of their new blocks for themselves. A hash covers everything before it:
    so of these blocks the first one stands for all.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # The prompts by the first block that they have for themselves.
        self._alone: dict[int, _Coming] = {}
        # How many prompts will leave this block at each endpoint.
        self._shared: dict[int, dict[str, int]] = {}
        self._ends: list[tuple[float, int, _Coming]] = []
        self._numbers = count()

    def take(self, prompt: SentPrompt, block_size: int) -> SentMarks:
        """Expect the prompt's blocks at its worker from now on; returns those that are kept."""
        hashes, depths = prompt.hashes, _depths(len(prompt.hashes), block_size)
        new = depths[bisect_right(depths, prompt.num_cached_blocks) :]
        marks = [hashes[num_blocks - 1] for num_blocks in new]
        sent = SentMarks(prompt.endpoint, marks, prompt.expected_s)
        self.expect(sent)
        return sent

    def expect(self, sent: SentMarks) -> None:
        """Expect these blocks at their worker from now on."""
        prompt = _Coming(sent.endpoint, sent.marks)
        self._place(prompt)
        until = self._clock.now() + min(sent.expected_s + _SLACK_S, _MAX_S)
        heapq.heappush(self._ends, (until, next(self._numbers), prompt))

    def match(self, hashes: Sequence[int], block_size: int) -> dict[str, int]:
        """Count a prompt's first blocks that workers will have, in steps; 0 is left out."""
        self._expire()
        depths = _depths(len(hashes), block_size)
        marks = [hashes[num_blocks - 1] for num_blocks in depths]
        coming: dict[str, int] = {}
        if not self._shared.keys().isdisjoint(marks):
            for num_blocks, block_hash in zip(depths, marks, strict=True):
                coming.update(dict.fromkeys(self._shared.get(block_hash, ()), num_blocks))
        if not self._alone.keys().isdisjoint(marks):
            for first, block_hash in enumerate(marks):
                if (prompt := self._alone.get(block_hash)) is not None:
                    own = prompt.marks[prompt.num_shared :]
                    num_blocks = depths[first + _num_common(own, marks[first:]) - 1]
                    coming[prompt.endpoint] = max(num_blocks, coming.get(prompt.endpoint, 0))
        return coming

    def _place(self, prompt: _Coming) -> None:
        """Count the blocks that the prompt has in common with others, and note the next one."""
        marks, endpoint = prompt.marks, prompt.endpoint
        while prompt.num_shared < len(marks):
            block_hash = marks[prompt.num_shared]
            workers, other = self._shared.get(block_hash), None
            if workers is None:
                other = self._alone.pop(block_hash, None)
                if other is None:
                    self._alone[block_hash] = prompt
                    return
                workers = self._shared[block_hash] = {other.endpoint: 1}
                other.num_shared += 1
            workers[endpoint] = workers.get(endpoint, 0) + 1
            prompt.num_shared += 1
            if other is not None:
                self._place(other)

    def _expire(self) -> None:
        now = self._clock.now()
        while self._ends and self._ends[0][0] <= now:
            _, _, prompt = heapq.heappop(self._ends)
            for block_hash in prompt.marks[: prompt.num_shared]:
                self._end_shared(block_hash, prompt.endpoint)
            if prompt.num_shared < len(prompt.marks):
                del self._alone[prompt.marks[prompt.num_shared]]

    def _end_shared(self, block_hash: int, endpoint: str) -> None:
        workers = self._shared[block_hash]
        workers[endpoint] -= 1
        if not workers[endpoint]:
            del workers[endpoint]
        if not workers:
            del self._shared[block_hash]


def _num_common(marks: Sequence[int], others: Sequence[int]) -> int:
    """The number of marks with which both begin."""
    pairs = zip(marks, others, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _grid() -> Iterator[int]:
    """Yield the marks in strides: each one first, then a tenth farther each time."""
    mark = 1
    while mark < MAX_PROMPT_TOKENS // STRIDE_TOKENS:
        yield mark
        mark = max(mark + 1, mark * 11 // 10)


_GRID = tuple(_grid())
# Blocks of one prompt that are kept at most.
MAX_MARKS = len(_GRID)


def _depths(num_blocks: int, block_size: int) -> Sequence[int]:
    """The blocks of a prompt whose hashes are kept, counted from 1."""
    stride = max(1, STRIDE_TOKENS // block_size)
    return _depths_of(bisect_right(_GRID, num_blocks // stride), stride)


@lru_cache(maxsize=1024)
def _depths_of(num_marks: int, stride: int) -> Sequence[int]:
    return tuple(mark * stride for mark in _GRID[:num_marks])

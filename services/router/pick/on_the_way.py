"""The prompts that workers were sent and have not computed yet: their blocks will be there soon.

A worker reports a block when it is computed, which may be seconds after the pick. Requests with the
same new beginning come closer together than that: the children of an agent, the choices of an
evaluation. Only a part of a prompt's hashes is kept, the farther from its beginning the fewer: a
hash covers everything before it. What was cached at the pick is the business of the prefix index.
"""

import heapq
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
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
    """The blocks that workers are about to cache.

    Most blocks are of one prompt: those are added, and forgotten, all at once.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # The endpoint of each block that one prompt alone will leave.
        self._alone: dict[int, str] = {}
        # How many prompts will leave this block at each endpoint.
        self._shared: dict[int, dict[str, int]] = {}
        self._ends: list[tuple[float, int, str, list[int]]] = []
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
        endpoint, marks, expected_s = sent
        if self._alone.keys().isdisjoint(marks) and self._shared.keys().isdisjoint(marks):
            self._alone.update(dict.fromkeys(marks, endpoint))
        else:
            for block_hash in marks:
                self._add(block_hash, endpoint)
        until = self._clock.now() + min(expected_s + _SLACK_S, _MAX_S)
        heapq.heappush(self._ends, (until, next(self._numbers), endpoint, marks))

    def match(self, hashes: Sequence[int], block_size: int) -> dict[str, int]:
        """Count a prompt's first blocks that workers will have, in steps; 0 is left out."""
        self._expire()
        alone, shared = self._alone, self._shared
        depths: dict[str, int] = {}
        if self._ends:
            for num_blocks in _depths(len(hashes), block_size):
                block_hash = hashes[num_blocks - 1]
                if block_hash in alone:
                    depths[alone[block_hash]] = num_blocks
                elif block_hash in shared:
                    depths.update(dict.fromkeys(shared[block_hash], num_blocks))
        return depths

    def _add(self, block_hash: int, endpoint: str) -> None:
        other = self._alone.pop(block_hash, None)
        if other is None and block_hash not in self._shared:
            self._alone[block_hash] = endpoint
            return
        workers = self._shared.setdefault(block_hash, {})
        if other is not None:
            workers[other] = 1
        workers[endpoint] = workers.get(endpoint, 0) + 1

    def _expire(self) -> None:
        now = self._clock.now()
        while self._ends and self._ends[0][0] <= now:
            _, _, endpoint, marks = heapq.heappop(self._ends)
            shared = [] if self._shared.keys().isdisjoint(marks) else marks
            for block_hash in marks:
                self._alone.pop(block_hash, None)
            for block_hash in shared:
                self._end_shared(block_hash, endpoint)

    def _end_shared(self, block_hash: int, endpoint: str) -> None:
        workers = self._shared.get(block_hash, {})
        if workers.get(endpoint, 0) > 1:
            workers[endpoint] -= 1
        else:
            # A peer may have named a block twice.
            workers.pop(endpoint, None)
        if not workers:
            self._shared.pop(block_hash, None)


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

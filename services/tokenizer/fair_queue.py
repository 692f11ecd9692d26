"""The queue of prompts, in which tenants take turns by bytes, in two lanes by size.

A large prompt takes a thread for a tenth of a second, a small one for half a millisecond: so small
ones never wait for large ones. In a lane the tenant whose prompts took the fewest bytes so far is
next; one that comes anew begins with the others' level. When the queue is full, the tenant with
the most bytes in it loses the prompt that came last.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from baton.wire.failures import Overloaded

SMALL_BYTES = 16 * 1024
# Whose bytes are remembered in a lane that is never empty.
MAX_TENANTS = 1024


@dataclass(frozen=True)
class QueueLimits:
    """The prompts in work at once by lane, and the prompts and bytes that are queued or in work."""

    num_small: int = 16
    num_large: int = 2
    max_prompts: int = 256
    max_bytes: int = 64 * 1024 * 1024


@dataclass(eq=False)
class Turn:
    """One prompt's place in the queue, and then its turn, until `leave`."""

    tenant: str
    num_bytes: int
    lane: "_Lane"
    queue: "FairQueue"
    started: "asyncio.Future[None]"
    # Work that goes on when the caller has left: a thread cannot be stopped.
    job: "asyncio.Future[Any] | None" = None

    def leave(self) -> None:
        """End the turn, once its job has ended."""
        if self.job is not None and not self.job.done():
            self.job.add_done_callback(self._end)
        else:
            self._end(self.job)

    def _end(self, job: "asyncio.Future[Any] | None") -> None:
        if job is not None and not job.cancelled():
            job.exception()  # its caller may have left
        self.queue.end(self)


@dataclass
class _Lane:
    num_turns: int
    running: int = 0
    waiting: dict[str, deque[Turn]] = field(default_factory=dict)
    # Bytes that each waiting tenant's prompts took, from the level at which it came.
    taken: dict[str, int] = field(default_factory=dict)
    level: int = 0

    def add(self, turn: Turn) -> None:
        if turn.tenant not in self.waiting:
            self.waiting[turn.tenant] = deque()
            self.taken[turn.tenant] = max(self.taken.get(turn.tenant, 0), self.level)
        self.waiting[turn.tenant].append(turn)

    def remove(self, turn: Turn) -> None:
        line = self.waiting.get(turn.tenant, deque())
        if turn in line:
            line.remove(turn)
            if not line:
                del self.waiting[turn.tenant]
        if len(self.taken) > MAX_TENANTS or not self.waiting:
            self.taken = {name: self.taken[name] for name in self.waiting}

    def start_next(self) -> None:
        """Start those whose turn it is."""
        while self.running < self.num_turns and self.waiting:
            tenant = min(self.waiting, key=lambda name: self.taken[name])
            turn = self.waiting[tenant][0]
            self.level = self.taken[tenant]
            if not turn.started.cancelled():
                self.taken[tenant] += turn.num_bytes
                self.running += 1
                turn.started.set_result(None)
            self.remove(turn)


class FairQueue:
    """The queue of one service."""

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._small, self._large = _Lane(limits.num_small), _Lane(limits.num_large)
        self._num_prompts = 0
        self._num_bytes = 0

    async def enter(self, tenant: str, num_bytes: int) -> Turn:
        """Wait for a turn, which must `leave`. Raises Overloaded."""
        lane = self._small if num_bytes <= SMALL_BYTES else self._large
        started = asyncio.get_running_loop().create_future()
        turn = Turn(tenant, num_bytes, lane, self, started)
        while self._is_full_for(num_bytes):
            self._push_out(tenant, num_bytes)
        self._num_prompts += 1
        self._num_bytes += num_bytes
        lane.add(turn)
        lane.start_next()
        try:
            await turn.started
        except asyncio.CancelledError:
            self._drop(turn)
            raise
        return turn

    def end(self, turn: Turn) -> None:
        """Free what a turn took, for the next."""
        self._forget(turn)
        turn.lane.running -= 1
        turn.lane.start_next()

    def _is_full_for(self, num_bytes: int) -> bool:
        has_place = self._num_prompts < self._limits.max_prompts
        return not has_place or self._num_bytes + num_bytes > self._limits.max_bytes

    def _push_out(self, tenant: str, num_bytes: int) -> None:
        """Make room at the cost of the tenant with the most bytes in line. Raises Overloaded when
        that is this one."""
        in_line: dict[str, int] = {}
        for turn in self._waiting():
            in_line[turn.tenant] = in_line.get(turn.tenant, 0) + turn.num_bytes
        longest = max(in_line, key=lambda name: in_line[name], default=tenant)
        if in_line.get(tenant, 0) + num_bytes >= in_line.get(longest, 0):
            raise _overloaded()
        last = [turn for turn in self._waiting() if turn.tenant == longest][-1]
        last.lane.remove(last)
        self._forget(last)
        last.started.set_exception(_overloaded())

    def _waiting(self) -> Iterator[Turn]:
        for lane in (self._small, self._large):
            for line in lane.waiting.values():
                yield from (turn for turn in line if not turn.started.cancelled())

    def _drop(self, turn: Turn) -> None:
        """Take out a prompt whose caller left while it waited, or just when its turn came."""
        if turn.started.cancelled():
            turn.lane.remove(turn)
            self._forget(turn)
        elif turn.started.exception() is None:
            self.end(turn)

    def _forget(self, turn: Turn) -> None:
        self._num_prompts -= 1
        self._num_bytes -= turn.num_bytes


def _overloaded() -> Overloaded:
    return Overloaded("The tokenizer has too many prompts in work", retry_after_s=1)

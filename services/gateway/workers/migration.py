"""Requests of one gateway that go to another worker, a few at once.

A worker that dies leaves hundreds of streams behind. If all of them were prefilled again at the
same moment, those that run elsewhere would stand still; so each waits a random time (full jitter)
and then for one of MAX_MIGRATIONS permits, which it has until its next token is there.

A worker that drains says when it will cut what still runs. What would not end by then leaves early,
one after the other at random times; what ends in time stays. Before its second token nothing is
known of a stream's pace, and a move could only lose what was computed, so it stays, too. Whatever
is left at the end moves when it is cut.
"""

import asyncio
import random
from collections.abc import Callable

from baton.system.clock import Clock
from baton.wire.failures import DeadlineExceeded, Unavailable
from services.gateway.workers.attempt import Attempt

MAX_MIGRATIONS = 32
MAX_JITTER_S = 0.1
# Mean time between two streams that leave a draining worker: less when there are many of them.
MAX_MIGRATION_PAUSE_S = 0.1
# The last part of the time, in which nothing leaves early any more.
LAST_S = 0.2


class MigrationLimiter:
    """Lets MAX_MIGRATIONS requests of one gateway look for another worker at the same time."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._permits = asyncio.Semaphore(MAX_MIGRATIONS)

    async def acquire(self, timeout_s: float) -> None:
        """Wait for a permit, which `release` gives back. Raises DeadlineExceeded."""
        try:
            async with asyncio.timeout(max(timeout_s, 0.0)):
                await asyncio.sleep(self._rng.uniform(0, MAX_JITTER_S))
                await self._permits.acquire()
        except TimeoutError:
            raise DeadlineExceeded("too many requests look for another worker") from None

    def release(self) -> None:
        """Give a permit back."""
        self._permits.release()


class MigrationPermit:
    """One request's permit to look for another worker: required once a worker has failed it, and
    held until its next token is there."""

    def __init__(self, limiter: MigrationLimiter) -> None:
        self._limiter = limiter
        self._is_required = False
        self._is_held = False

    def require(self) -> None:
        """A worker has failed: the next pick waits for a permit, behind those that wait already."""
        self.release()
        self._is_required = True

    async def acquire(self, timeout_s: float) -> None:
        """Wait for the permit, if one is required. Raises DeadlineExceeded."""
        if self._is_required:
            self._is_required = False
            await self._limiter.acquire(timeout_s)
            self._is_held = True

    def release(self) -> None:
        """Give the permit back, if it is held."""
        if self._is_held:
            self._is_held = False
            self._limiter.release()


class EarlyMigration:
    """Moves streams off a worker that drains. `has_another` says of a model whether a worker other
    than this one would take its streams."""

    def __init__(
        self, rng: random.Random, has_another: Callable[[str, str], bool], clock: Clock
    ) -> None:
        self._rng = rng
        self._has_another = has_another
        self._clock = clock

    async def migrate_from(
        self, worker_id: str, open_attempts: Callable[[], list[Attempt]], cut_after_s: float
    ) -> None:
        """Take from a draining worker what will not have ended when it cuts. Looks again and again:
        a stream's pace changes, and those that have no pace yet will have one."""
        cut_s = self._clock.now() + cut_after_s
        while (left_s := cut_s - self._clock.now()) > LAST_S and (attempts := open_attempts()):
            self._rng.shuffle(attempts)
            pause_s = min(MAX_MIGRATION_PAUSE_S, left_s / 2 / len(attempts))
            for attempt in attempts:
                await asyncio.sleep(self._rng.uniform(0, 2 * pause_s))
                is_late = (attempt.left_s() or 0.0) > cut_s - self._clock.now()
                if is_late and self._has_another(attempt.key.model_fp, worker_id):
                    attempt.abandon(Unavailable("the worker drains", reason="draining"))

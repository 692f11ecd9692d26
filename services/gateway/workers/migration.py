"""Migrations of one gateway's requests to other workers, a few at once.

A worker that dies leaves hundreds of streams behind. If all of them were prefilled again at the
same moment, the streams that run elsewhere would stand still. So each waits a random time (full
jitter) and then for one of MAX_MIGRATIONS permits, which it holds until its next token is there.

A worker that drains announces when it will cut the streams that still run. A stream that would not
end by then migrates early, one after the other at random times; one that ends in time stays. Before
its second token a stream's pace is not known and a migration could only lose what was computed, so
it stays, too. The streams that are left at the end migrate when they are cut.
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
# The last part of that time, in which no stream migrates early any more.
LAST_S = 0.2


class MigrationLimiter:
    """The permits of one gateway: MAX_MIGRATIONS requests look for another worker at once."""

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


class EarlyMigration:
    """Migrates streams off a worker that drains. `has_another(model_fp, worker_id, adapter)`:
    another worker would take streams of the model, and of its adapter if that is not empty."""

    def __init__(
        self, rng: random.Random, has_another: Callable[[str, str, str], bool], clock: Clock
    ) -> None:
        self._rng = rng
        self._has_another = has_another
        self._clock = clock

    async def migrate_from(
        self, worker_id: str, open_attempts: Callable[[], list[Attempt]], cut_after_s: float
    ) -> None:
        """Migrate the streams that will not have ended when the worker cuts them.

        Looks at them again and again: a stream's pace changes, and is not known at first.
        """
        cut_s = self._clock.now() + cut_after_s
        while (left_s := cut_s - self._clock.now()) > LAST_S and (attempts := open_attempts()):
            self._rng.shuffle(attempts)
            pause_s = min(MAX_MIGRATION_PAUSE_S, left_s / 2 / len(attempts))
            for attempt in attempts:
                await asyncio.sleep(self._rng.uniform(0, 2 * pause_s))
                is_late = (attempt.left_s() or 0.0) > cut_s - self._clock.now()
                key = attempt.key
                if is_late and self._has_another(key.model_fp, worker_id, key.adapter):
                    attempt.abandon(Unavailable("the worker drains", reason="draining"))

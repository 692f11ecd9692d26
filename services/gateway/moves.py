"""How many requests of one gateway look for a new worker at once.

A worker that dies leaves hundreds of streams behind. If all of them were prefilled again at the
same moment, those that run elsewhere would stand still; so each waits a random time (full jitter)
and then for one of MAX_AT_ONCE places, which it has until its next token is there.
"""

import asyncio
import random

from baton.wire.failures import DeadlineExceeded

MAX_AT_ONCE = 32
MAX_JITTER_S = 0.1


class Place:
    """One of the places; leaving it twice does nothing."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places: asyncio.Semaphore | None = places

    def leave(self) -> None:
        if self._places is not None:
            self._places.release()
            self._places = None


class MoveGate:
    """Of one gateway."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._places = asyncio.Semaphore(MAX_AT_ONCE)

    async def enter(self, timeout_s: float) -> Place:
        """Wait for a place; whoever calls leaves it again. Raises DeadlineExceeded."""
        try:
            async with asyncio.timeout(max(timeout_s, 0.0)):
                await asyncio.sleep(self._rng.uniform(0, MAX_JITTER_S))
                await self._places.acquire()
        except TimeoutError:
            raise DeadlineExceeded("too many requests look for another worker") from None
        return Place(self._places)

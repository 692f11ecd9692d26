"""An asyncio.Event with more than two states, for one coroutine that follows something.

What happens is noted in the call that brings it; the coroutine learns of it in the loop's next
turn. A stage that was reached before a failure counts as reached.
"""

import asyncio


class StageEvent:
    """How far something has come. Stages are numbers that only grow."""

    def __init__(self) -> None:
        self.stage = 0
        self.failure: Exception | None = None
        self._changed = asyncio.Event()

    def advance(self, stage: int) -> None:
        """It has come to a stage, or there is news of the one that it is in."""
        self.stage = max(self.stage, stage)
        self._changed.set()

    def fail(self, failure: Exception) -> None:
        """It comes no further; the first failure counts."""
        self.failure = self.failure or failure
        self._changed.set()

    async def reach(self, stage: int) -> None:
        """Wait for a stage. Raises the failure that came before it."""
        while self.stage < stage:
            await self.news()

    async def news(self) -> None:
        """Wait for the next `advance` or `fail`. Raises the failure that is known already."""
        if self.failure is not None:
            raise self.failure
        self._changed.clear()
        await self._changed.wait()

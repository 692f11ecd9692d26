"""Ends all guarded blocks at one moment: the end of a drain whose time is up."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable

# A time of the event loop that has passed.
_PAST_S = -math.inf


class CutOff(Exception):
    """Raised out of a guarded block that `Cutoff.now` has ended."""


class Cutoff:
    """Any number of blocks that end together."""

    def __init__(self) -> None:
        self.has_come = False
        self._open: dict[asyncio.Timeout, Callable[[], None]] = {}

    def now(self) -> None:
        """End all open blocks, and every later one as soon as it waits."""
        self.has_come = True
        for timeout, before in self._open.items():
            before()
            timeout.reschedule(_PAST_S)

    @contextlib.asynccontextmanager
    async def guard(self, before: Callable[[], None] = lambda: None) -> AsyncIterator[None]:
        """Guard a block: at the cutoff, `before` is called and the block's await raises CutOff."""
        try:
            async with asyncio.timeout(0 if self.has_come else None) as timeout:
                self._open[timeout] = before
                try:
                    yield
                finally:
                    del self._open[timeout]
        except TimeoutError:
            if timeout.expired():
                raise CutOff from None
            raise

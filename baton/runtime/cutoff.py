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
        self._come = asyncio.Event()
        self._open: dict[asyncio.Timeout, Callable[[], None]] = {}

    @property
    def has_come(self) -> bool:
        return self._come.is_set()

    async def come(self) -> None:
        """Wait for it, where nothing is to be ended."""
        await self._come.wait()

    def now(self) -> None:
        """End all open blocks, and every later one as soon as it waits."""
        self._come.set()
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

"""Ends, at one moment, everything that runs under it: what a drain does at its cap."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable


class CutOff(Exception):
    """The block that this left was ended by `Cutoff.now`."""


class Cutoff:
    """Any number of guarded blocks at once."""

    def __init__(self) -> None:
        self.has_come = False
        self._open: dict[asyncio.Timeout, Callable[[], None]] = {}

    def now(self) -> None:
        """End all open blocks, and every later one as soon as it waits."""
        self.has_come = True
        when_s = asyncio.get_running_loop().time()
        for timeout, before in self._open.items():
            before()
            timeout.reschedule(when_s)

    @contextlib.asynccontextmanager
    async def guard(self, before: Callable[[], None] = lambda: None) -> AsyncIterator[None]:
        """Raises CutOff where the block waits at that moment; `before` is called just then."""
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

"""The line of large request bodies, which are parsed one at a time, in order, in a thread.

Parsing takes up to a quarter of a second a MiB and 100 times the body's size in memory. The length
of the line is bounded for each tenant and for all, so that one tenant cannot fill it.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from baton.wire.failures import Overloaded
from services.gateway.clients.protocols import RunInThread

LARGE_BODY_BYTES = 64 * 1024
# Bodies in the line, with the one that is parsed.
MAX_LINE = 16
MAX_LINE_OF_TENANT = 4

T = TypeVar("T")


class LargeBodies:
    """The line of one gateway."""

    def __init__(self, in_thread: RunInThread) -> None:
        self._in_thread = in_thread
        self._turn = asyncio.Lock()
        self._in_line: Counter[str] = Counter()

    async def parse(self, tenant: str, work: Callable[[], T]) -> T:
        """Run `work` when its turn has come. Raises Overloaded, and what `work` raises."""
        in_line = self._in_line
        if in_line.total() >= MAX_LINE or in_line[tenant] >= MAX_LINE_OF_TENANT:
            raise Overloaded("too many large requests wait to be parsed", retry_after_s=1)
        in_line[tenant] += 1
        try:
            await self._turn.acquire()
        except asyncio.CancelledError:
            self._leave(tenant)
            raise
        parsing = asyncio.ensure_future(self._in_thread(work))
        parsing.add_done_callback(lambda _: self._end_turn(tenant))
        # A thread cannot be stopped: it keeps its turn to the end, also when its client has left.
        return await asyncio.shield(parsing)

    def _end_turn(self, tenant: str) -> None:
        self._turn.release()
        self._leave(tenant)

    def _leave(self, tenant: str) -> None:
        self._in_line[tenant] -= 1
        if not self._in_line[tenant]:
            del self._in_line[tenant]

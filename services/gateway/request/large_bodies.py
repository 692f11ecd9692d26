"""The line of large request bodies, which are parsed one at a time, in order, in a thread.

A conversation of 400 kB is parsed in 1.5 ms, but a body can be made that takes a quarter of a
second a MiB, and 100 times its size in memory. The bytes in the line are bounded for each tenant
and for all, so that one tenant cannot fill it.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from baton.wire.failures import Overloaded
from services.gateway.clients.protocols import RunInThread

LARGE_BODY_BYTES = 64 * 1024
# Bytes in the line, with the body that is parsed: two of the largest bodies of each tenant.
MAX_LINE_BYTES = 64 * 1024 * 1024
MAX_LINE_BYTES_OF_TENANT = 16 * 1024 * 1024

T = TypeVar("T")


class LargeBodies:
    """The line of one gateway."""

    def __init__(self, in_thread: RunInThread) -> None:
        self._in_thread = in_thread
        self._turn = asyncio.Lock()
        # Bytes in the line by tenant.
        self._in_line: Counter[str] = Counter()

    async def parse(self, tenant: str, num_bytes: int, work: Callable[[], T]) -> T:
        """Run `work`, on a body of so many bytes, when its turn has come. Raises Overloaded, and
        what `work` raises."""
        self._enter(tenant, num_bytes)
        try:
            await self._turn.acquire()
        except asyncio.CancelledError:
            self._leave(tenant, num_bytes)
            raise
        parsing = asyncio.ensure_future(self._in_thread(work))
        parsing.add_done_callback(lambda _: self._end_turn(tenant, num_bytes))
        # A thread cannot be stopped: it keeps its turn to the end, also when its client has left.
        return await asyncio.shield(parsing)

    def _enter(self, tenant: str, num_bytes: int) -> None:
        num_after = self._in_line[tenant] + num_bytes
        if num_after > MAX_LINE_BYTES_OF_TENANT or (
            self._in_line.total() + num_bytes > MAX_LINE_BYTES
        ):
            raise Overloaded("too many large requests wait to be parsed", retry_after_s=1)
        self._in_line[tenant] = num_after

    def _end_turn(self, tenant: str, num_bytes: int) -> None:
        self._turn.release()
        self._leave(tenant, num_bytes)

    def _leave(self, tenant: str, num_bytes: int) -> None:
        self._in_line[tenant] -= num_bytes
        if not self._in_line[tenant]:
            del self._in_line[tenant]

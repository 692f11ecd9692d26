"""A wait that almost always ends before its timeout, at the price of one future."""

import asyncio

from baton.system.clock import Clock
from baton.wire.failures import DeadlineExceeded


class Wakeup:
    """Lets one task wait until another one wakes it.

    A token comes every few milliseconds and the timeout almost never fires. So the timer is left
    running from one wait to the next, and looks at the deadline of the current one when it fires.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._deadline_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_s = 0.0

    async def wait(self, timeout_s: float) -> None:
        """Wait for `wake`. Raises DeadlineExceeded."""
        self._deadline_s = self._clock.now() + timeout_s
        if self._timer is None or self._timer_due_s > self._deadline_s:
            self._set_timer(timeout_s)
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def wake(self) -> None:
        """Let the task go on, if it waits."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def release(self) -> None:
        """Stop the timer for good: there will be no more waits."""
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self, delay_s: float) -> None:
        self.release()
        self._timer_due_s = self._deadline_s
        self._timer = self._loop.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        left_s = self._deadline_s - self._clock.now()
        if left_s > 0:
            self._set_timer(left_s)
        else:
            self._waiter.set_exception(DeadlineExceeded("no token came in time"))

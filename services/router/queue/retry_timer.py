"""One timer of a queue, on the running event loop."""

import asyncio
from collections.abc import Callable

from baton.system.clock import Clock

# How much too early, by the clock, a timer is taken as due: uvloop counts in whole milliseconds.
TIMER_SLACK_S = 0.002


class RetryTimer:
    """Calls `retry` when it is due."""

    def __init__(self, clock: Clock, retry: Callable[[], None]) -> None:
        self._clock = clock
        self._retry = retry
        self._handle: asyncio.TimerHandle | None = None
        self._due_at = 0.0

    def set(self, delay_s: float) -> None:
        """Be due in `delay_s`, or earlier if it is set to an earlier time already."""
        due_at = self._clock.now() + delay_s
        if self._handle is not None and self._due_at > due_at:
            self.clear()
        if self._handle is None:
            self._due_at = due_at
            self._handle = asyncio.get_running_loop().call_later(delay_s, self._fire)

    def clear(self) -> None:
        """Be due no more."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        left_s = self._due_at - self._clock.now()
        if left_s > TIMER_SLACK_S:
            self.set(left_s)
        else:
            self._retry()

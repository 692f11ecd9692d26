"""Reports to the front that wait until the blocks they name are where the front reads them.

One rule: reports leave in order, and each only when every copy out of the device that was begun
before it has ended. So progress is never reported too early, and nothing is still being copied into
a block that is bound or free for the front. Without such copies nothing waits.
"""

from collections import deque

from baton.engine.protocol.messages import StepEvents
from baton.engine.protocol.runner import CopyingRunner, Runner

POLL_INTERVAL_S = 0.0005


class ReportQueue:
    """The queue of one engine. A runner's ring bounds its copies, and so the queue."""

    def __init__(self, runner: Runner) -> None:
        self._copies = runner if isinstance(runner, CopyingRunner) else None
        # Each with the number of copies that must have ended.
        self._waiting: deque[tuple[int, StepEvents]] = deque()

    def put(self, events: StepEvents) -> None:
        """The next report."""
        self._waiting.append((self._copies.num_copies_begun if self._copies else 0, events))

    def take(self) -> StepEvents | None:
        """The oldest report, if it may leave."""
        if not self._waiting:
            return None
        num_awaited, events = self._waiting[0]
        if self._copies is not None and self._copies.poll_copies() < num_awaited:
            return None
        self._waiting.popleft()
        return events

    @property
    def next_poll_s(self) -> float | None:
        """In how many seconds `take` could bring something; None = not before the next report."""
        return POLL_INTERVAL_S if self._waiting else None

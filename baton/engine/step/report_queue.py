"""Reports that wait for copies out of a device's cache, of Baton's own engine and of others."""

from collections import deque
from typing import Protocol

from baton.engine.protocol.messages import StepEvents

POLL_INTERVAL_S = 0.0005


class Copies(Protocol):
    """Copies from a cache into the staging ring, beside the steps; they end in order."""

    @property
    def num_copies_begun(self) -> int:
        """The number of copies that were begun so far."""

    def poll_copies(self) -> int:
        """The number of copies that have ended: their rows are filled. Does not wait."""


class ReportQueue:
    """Reports that wait until the blocks they name are where the front reads them.

    One rule: reports leave in order, and each only when every copy out of the device that was begun
    before it has ended. So progress is never reported too early, and nothing is still being copied
    into a row that was leased again. Without such copies nothing waits. A runner's slots bound its
    copies, and so the queue.
    """

    def __init__(self, copies: Copies | None) -> None:
        self._copies = copies
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

"""Time as a dependency (decision 0023): components read the clock that they were given."""

import time
from typing import Protocol


class Clock(Protocol):
    """What a component may know of time."""

    def now(self) -> float:
        """Monotonic seconds; equal in all processes of one machine."""

    def unix(self) -> float:
        """Seconds since 1970, for people and records; never for durations."""


class SystemClock:
    """The machine's own clock."""

    def now(self) -> float:
        return time.monotonic()

    def unix(self) -> float:
        return time.time()

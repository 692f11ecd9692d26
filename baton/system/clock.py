"""Time as a dependency (decision 0023): components read the clock that they were given."""

import time
from typing import Protocol


class Clock(Protocol):
    """A component's only source of time."""

    def now(self) -> float:
        """Seconds of a monotonic clock that all processes of one machine share."""

    def unix(self) -> float:
        """Seconds since 1970, for people and records, never for durations."""


class SystemClock:
    """The machine's own clock."""

    # A request reads the time 60 times: without a call between.
    now = staticmethod(time.monotonic)
    unix = staticmethod(time.time)

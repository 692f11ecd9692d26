"""The pace at which waiting requests get their workers: measured, and forgotten when it is old.

Grants come in bursts, since workers report what they finished together, and now and then a pause
is long. So the pace is the mean over the latest grants, in which one pause weighs little. A pause
that goes on counts while it lasts. Time in which no request waits does not count.
"""

from collections import deque

from baton.system.clock import Clock

# The mean is over so many grants, and unknown before the first few.
MAX_GRANTS = 32
MIN_GRANTS = 8
# A pace that has not been measured for this long is unknown: the fleet may be another one.
MEMORY_S = 60.0


class GrantPace:
    """The mean time between two grants to waiting requests."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._intervals: deque[float] = deque(maxlen=MAX_GRANTS)
        self._sum_s = 0.0
        self._granted_at = float("-inf")
        # The last grant, or the time since when a request has waited; None while none waits.
        self._since: float | None = None

    def begin(self) -> None:
        """Note that a request waits from now on, if none did."""
        now = self._clock.now()
        if self._since is None:
            self._since = now
            if now - self._granted_at > MEMORY_S:
                self._intervals.clear()
                self._sum_s = 0.0

    def pause(self) -> None:
        """Note that no request waits any more."""
        self._since = None

    def note(self) -> None:
        """Take in a grant to a request that waited."""
        now = self._clock.now()
        if self._since is not None:
            if len(self._intervals) == MAX_GRANTS:
                self._sum_s -= self._intervals[0]
            self._intervals.append(now - self._since)
            self._sum_s += now - self._since
            self._since = now
        self._granted_at = now

    @property
    def interval_s(self) -> float:
        """The mean; 0 while it is not known."""
        num = len(self._intervals)
        if num < MIN_GRANTS:
            return 0.0
        open_s = 0.0 if self._since is None else self._clock.now() - self._since
        return max(self._sum_s / num, (self._sum_s + open_s) / (num + 1))

"""The retry budget of the fleet: second attempts may cost a share of what first ones do.

A worker that dies sends all its requests to the others, to be prefilled again. Once that is right;
when workers die again and again, or take what they cannot hold, second attempts would crowd out
first ones. Routers see every repeated pick of the fleet, and tell each other of it, so the budget
is here. It is full with what a large worker holds: the death of one fails no request. After that
each first pick adds a share. Streams whose clients have tokens are never refused, and their
attempts are counted all the same: while they need the budget, requests without output are refused.
"""

from baton.system.clock import Clock
from baton.wire.failures import Overloaded

MAX_RETRIES = 256.0
SHARE = 0.2
# Second attempts a second that even a fleet without first picks may make.
MIN_PER_S = 1.0
_RETRY_AFTER_S = 2.0


class RetryBudget:
    """The second attempts that may be made now."""

    def __init__(self, clock: Clock) -> None:
        # First picks since the last second attempt, counted by those that see them.
        self.num_first = 0
        self._clock = clock
        self._left = MAX_RETRIES
        self._counted_at = clock.now()

    def spend(self, *, has_begun: bool) -> None:
        """Count a second attempt. Raises Overloaded when none is left and its stream has not
        begun."""
        now = self._clock.now()
        earned = MIN_PER_S * (now - self._counted_at) + SHARE * self.num_first
        self._left = min(self._left + earned, MAX_RETRIES)
        self._counted_at, self.num_first = now, 0
        if self._left < 1.0 and not has_begun:
            raise Overloaded("workers have failed too many requests", retry_after_s=_RETRY_AFTER_S)
        self._left = max(self._left - 1.0, 0.0)

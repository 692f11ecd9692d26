"""Decides which requests may join the line: those whose first token is predicted to come in time.

A request that would come too late is refused on arrival, because an early no is worth more than a
late one, and the time of its workers is worth most (decision 0034). Without a deadline of its own
a request waits `max_wait_s` at most. Where that is too short for the load, a long line serves no
more requests than a short one: each only waits longer. So after a refusal the line may hold
OVERLOAD_WAIT_S only, until none has been refused for a while; but not for requests that have more
time than those that were refused.
"""

from baton.system.clock import Clock
from baton.wire.failures import Overloaded

# Predictions are wrong at times: a wait may take so much of the time that there is for it.
SAFE_SHARE = 0.8
# The longest wait during an overload, and how long one lasts after the last refusal.
OVERLOAD_WAIT_S = 2.0
OVERLOAD_S = 10.0
# Requests that have this much more time than one that was refused are served as ever.
_MUCH_MORE = 1.25
_MIN_RETRY_AFTER_S = 1.0


class Shedding:
    """The admission to one model's line."""

    def __init__(self, max_wait_s: float, clock: Clock) -> None:
        self._max_wait_s = max_wait_s
        self._clock = clock
        self._overloaded_until = float("-inf")
        # The longest wait for which a request was refused since the overload began.
        self._refused_bound_s = 0.0

    def check(self, wait_s: float, first_token_s: float, left_s: float) -> None:
        """Raise Overloaded when a request that would wait `wait_s` came too late.

        Its first token follows `first_token_s` after the wait and is due in `left_s`.
        """
        bound_s = SAFE_SHARE * min(self._max_wait_s, left_s - first_token_s)
        now = self._clock.now()
        if now >= self._overloaded_until:
            self._refused_bound_s = 0.0
        longest_s = bound_s
        if bound_s <= _MUCH_MORE * self._refused_bound_s:
            longest_s = min(bound_s, OVERLOAD_WAIT_S)
        if wait_s <= longest_s:
            return
        self._overloaded_until = now + OVERLOAD_S
        self._refused_bound_s = max(self._refused_bound_s, bound_s)
        message = f"the line is {wait_s:.3g} s long"
        if wait_s > bound_s and left_s - first_token_s < self._max_wait_s:
            message = (
                f"the first token is due in {left_s:.3g} s and would come "
                f"{wait_s + first_token_s:.3g} s from now"
            )
        raise self.refusal(message, wait_s)

    def refusal(self, message: str, wait_s: float) -> Overloaded:
        """The refusal of a request while the predicted wait is `wait_s`."""
        retry_after_s = min(max(wait_s, _MIN_RETRY_AFTER_S), max(self._max_wait_s, 1.0))
        return Overloaded(message, retry_after_s=retry_after_s)

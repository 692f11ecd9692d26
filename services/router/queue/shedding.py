"""Decides which requests may join the line: those whose first token is predicted to come in time.

A request that would come too late is refused on arrival, because an early no is worth more than a
late one, and the time of its workers is worth most (decision 0034). Without a deadline of its own
a request waits `max_wait_s` at most. Where even that is too short for the load, a long line serves
no more requests than a short one: each only waits longer. So after such a refusal the line may
hold OVERLOAD_WAIT_S only, until none has been refused for a while.
"""

from baton.system.clock import Clock
from baton.wire.failures import Overloaded

# Predictions are wrong at times: a wait may take so much of the time that there is for it.
SAFE_SHARE = 0.8
# The longest wait during an overload, and how long one lasts after the last refusal.
OVERLOAD_WAIT_S = 2.0
OVERLOAD_S = 10.0
_MIN_RETRY_AFTER_S = 1.0


class Shedding:
    """The admission to one model's line."""

    def __init__(self, max_wait_s: float, clock: Clock) -> None:
        self._max_wait_s = max_wait_s
        self._clock = clock
        self._overloaded_until = float("-inf")

    def check(self, wait_s: float, first_token_s: float, left_s: float) -> None:
        """Raise Overloaded when a request that would wait `wait_s` came too late.

        Its first token follows `first_token_s` after the wait and is due in `left_s`.
        """
        now = self._clock.now()
        longest_s = SAFE_SHARE * self._max_wait_s
        if now < self._overloaded_until:
            longest_s = min(longest_s, OVERLOAD_WAIT_S)
        if wait_s > longest_s:
            self._overloaded_until = now + OVERLOAD_S
            raise self.refusal(f"the line is {wait_s:.3g} s long", wait_s)
        if wait_s > SAFE_SHARE * (left_s - first_token_s):
            raise self.refusal(
                f"the first token is due in {left_s:.3g} s and would come "
                f"{wait_s + first_token_s:.3g} s from now",
                wait_s,
            )

    def refusal(self, message: str, wait_s: float) -> Overloaded:
        """The refusal of a request while the predicted wait is `wait_s`."""
        retry_after_s = min(max(wait_s, _MIN_RETRY_AFTER_S), max(self._max_wait_s, 1.0))
        return Overloaded(message, retry_after_s=retry_after_s)

"""How long a request may still take: in all, to its first token, between two tokens.

What the client asked for in a header stands above this gateway's limits. Time is handed on as what
remains of it: in frames to the workers, as the deadline of a call to the other services.
"""

from baton.system.clock import Clock

# A peer that misses a call's deadline is taken for unwell, which no client's impatience may bring
# about: the request's own end comes first, and cancels the call.
CALL_MARGIN_S = 0.05


class Deadlines:
    """The deadlines of one request, from now on."""

    def __init__(
        self, total_s: float, first_token_s: float, token_gap_s: float, clock: Clock
    ) -> None:
        self.token_gap_s = token_gap_s
        self._clock = clock
        self._ends_s = clock.now() + total_s
        self._due_s = clock.now() + min(first_token_s, total_s)

    @property
    def left_s(self) -> float:
        """Until all of it must be done; negative when that is over."""
        return self._ends_s - self._clock.now()

    @property
    def first_token_left_s(self) -> float:
        """Until its first token must be there, or the first after a move; negative when that is
        over."""
        return self._due_s - self._clock.now()

    def await_next_token(self) -> None:
        """A stream moves to another worker: for the client that is a gap between two tokens."""
        self._due_s = min(self._clock.now() + self.token_gap_s, self._ends_s)

    def of_call(self, limit_s: float) -> float:
        """The deadline of a call that ends with the request and takes `limit_s` at most."""
        return min(limit_s, max(self.left_s, 0.0) + CALL_MARGIN_S)

"""The deadlines of a request: in all, to its first token, between two tokens.

The timeouts in a client's headers replace this gateway's own. Deadlines travel as remaining time:
in frames to the workers, and as the deadline of a call to another service.
"""

from baton.system.clock import Clock

# A peer that misses a call's deadline is taken for unwell, and a client's short timeout must not
# bring that about: with this margin the request's own end comes first, and cancels the call.
CALL_MARGIN_S = 0.05


class Deadlines:
    """The deadlines of one request, counted from the moment of creation."""

    def __init__(
        self, total_s: float, first_token_s: float | None, token_gap_s: float, clock: Clock
    ) -> None:
        """Without `first_token_s` the first token may take as long as the whole request: routers
        bound the time in their queues, and workers that stand still are ejected."""
        self.token_gap_s = token_gap_s
        self._clock = clock
        self._ends_s = clock.now() + total_s
        self._due_s = self._ends_s
        if first_token_s is not None:
            self._due_s = min(clock.now() + first_token_s, self._ends_s)

    @property
    def left_s(self) -> float:
        """Seconds until the whole request must be done; negative after that."""
        return self._ends_s - self._clock.now()

    @property
    def first_token_left_s(self) -> float:
        """Seconds until its first token is due, or the first after a migration; negative after
        that."""
        return self._due_s - self._clock.now()

    def await_next_token(self) -> None:
        """Set when the next token is due of a stream that migrates: for its client the migration is
        a gap between two tokens."""
        self._due_s = min(self._clock.now() + self.token_gap_s, self._ends_s)

    def of_call(self, limit_s: float) -> float:
        """The deadline of a call that ends with the request and takes `limit_s` at most."""
        return min(limit_s, max(self.left_s, 0.0) + CALL_MARGIN_S)

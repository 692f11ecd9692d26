"""The progress of one attempt's choices, the credit that bounds it, and the pace."""

from baton.system.clock import Clock
from baton.wire.failures import InternalFailure, Unavailable
from baton.wire.prefix_hash import TOKEN_BYTES
from baton.wire.v1 import worker_pb2
from services.gateway import instruments


class OutputProgress:
    """The next output index and the credit of each choice.

    Only the next index of a choice is accepted, so no token is ever doubled or skipped. Indexes
    count a choice's output tokens over all attempts of its request.
    """

    def __init__(self, submit: worker_pb2.Submit, clock: Clock) -> None:
        self.num_choices = submit.sampling.num_choices
        self.finished = set(submit.ended_choices)
        self._max_tokens = submit.sampling.max_tokens
        self._first_index = _first_indexes(submit)
        self._next_index = list(self._first_index)
        self._credit = [first + submit.initial_credit_tokens for first in self._first_index]
        self._clock = clock
        self._first_token_s: float | None = None

    @property
    def num_received(self) -> int:
        """The number of tokens, over all choices, that this attempt brought."""
        return sum(self._next_index) - sum(self._first_index)

    def give(self, choice: int, up_to_index: int) -> None:
        """Let the choice come to this output index (exclusive)."""
        self._credit[choice] = up_to_index

    def advance(self, choice: int, first_index: int, num_tokens: int) -> bool:
        """Take in the next tokens of a choice; False when they have come before.

        Raises Unavailable when tokens before them are missing, InternalFailure when the worker has
        no credit for them.
        """
        expected = self._next_index[choice]
        if first_index != expected:
            _reject(first_index, expected, num_tokens)
            return False
        if expected + num_tokens > self._credit[choice]:
            raise InternalFailure("the worker sent more tokens than it had credit for")
        self._next_index[choice] = expected + num_tokens
        if self._first_token_s is None:
            self._first_token_s = self._clock.now()
        return True

    def left_s(self) -> float | None:
        """Seconds that the open choices take at most at their pace; None while it is not known."""
        num_gaps = max(map(int.__sub__, self._next_index, self._first_index)) - 1
        if self._first_token_s is None or num_gaps < 1:
            return None
        gap_s = (self._clock.now() - self._first_token_s) / num_gaps
        open_choices = set(range(self.num_choices)) - self.finished
        ahead = min((self._next_index[choice] for choice in open_choices), default=self._max_tokens)
        return gap_s * (self._max_tokens - ahead)


def _reject(first: int, expected: int, num_tokens: int) -> None:
    # A repeat is dropped. A gap is a worker's error, and no second request would mend it: the link
    # notices the frames that a broken stream lost, and they are sent again
    # (baton/runtime/resumable_link.py).
    is_gap = first > expected
    cause = instruments.DropCause.GAP if is_gap else instruments.DropCause.REPEAT
    instruments.GATEWAY_DROPPED_ENTRIES.labels(cause).inc()
    if is_gap:
        raise Unavailable(
            f"tokens {expected} to {first} never arrived ({num_tokens} after them did)",
            reason="worker_lost",
        )


def _first_indexes(submit: worker_pb2.Submit) -> list[int]:
    """The number of output tokens that earlier attempts brought, by choice."""
    first = [0] * submit.sampling.num_choices
    for emitted in submit.emitted:
        first[emitted.choice] = len(emitted.token_ids) // TOKEN_BYTES
    return first

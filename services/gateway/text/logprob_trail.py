"""Logprobs of one choice's tokens, kept until the text that the tokens stand for is sent.

A token's logprobs are sent with the first character of its text; those of tokens that a stop string
cut off are never sent. A token that completes a character shares it with the ones that began it.
"""

from collections import deque
from collections.abc import Callable

from baton.wire.v1 import worker_pb2
from services.gateway.openai.generation import Likelihood, TokenLogprob

# Stands for minus infinity, which JSON lacks, as at OpenAI.
MIN_LOGPROB = -9999.0

BytesOf = Callable[[int], bytes]


def token_logprob(
    text_offset: int, token_id: int, token_logprobs: worker_pb2.TokenLogprobs, bytes_of: BytesOf
) -> TokenLogprob:
    """A worker's logprobs of one token, with bytes for ids."""
    top = zip(token_logprobs.top_ids, token_logprobs.top_logprobs, strict=True)
    return TokenLogprob(
        text_offset,
        bytes_of(token_id),
        max(token_logprobs.logprob, MIN_LOGPROB),
        tuple(Likelihood(bytes_of(id), max(logprob, MIN_LOGPROB)) for id, logprob in top),
    )


class LogprobTrail:
    """The logprobs of one choice. `first_offset`: characters of the answer before its own text.
    `keeps_end`: the token that ended the choice has an entry, too, without text."""

    def __init__(self, bytes_of: BytesOf, first_offset: int = 0, keeps_end: bool = False) -> None:
        self._bytes_of = bytes_of
        self._first_offset = first_offset
        self._keeps_end = keeps_end
        # Bounded by the tokens whose text is held back.
        self._held: deque[tuple[int, TokenLogprob]] = deque()

    def add(self, start: int, token_id: int, token_logprobs: worker_pb2.TokenLogprobs) -> None:
        """Add the next token; its text starts at character `start` of the choice, or later."""
        offset = self._first_offset + start
        self._held.append((start, token_logprob(offset, token_id, token_logprobs, self._bytes_of)))

    def release(self, num_sent_chars: int) -> tuple[TokenLogprob, ...]:
        """Release the logprobs of the tokens whose text has begun to be sent."""
        released = []
        while self._held and self._held[0][0] < num_sent_chars:
            released.append(self._held.popleft()[1])
        return tuple(released)

    def release_all(self) -> tuple[TokenLogprob, ...]:
        """Release all logprobs: the choice has ended, and not by a stop string."""
        released = tuple(entry for _, entry in self._held)
        self._held.clear()
        return released

    def end(self) -> None:
        """Drop the last token, which ended the choice and is not part of it, or its text."""
        if not self._held:
            return
        start, entry = self._held.pop()
        if self._keeps_end:
            self._held.append((start, entry._replace(token=b"")))

"""One request of a load test, and its body."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from loadtest.workloads import Message

PATH = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `due_s`: when it should be sent; none: when its user is ready."""

    messages: Sequence[Message]
    num_output_tokens: int
    due_s: float | None = None
    leave_after_pieces: int | None = None

    def body(self, model: str) -> bytes:
        """Exactly so many tokens: before them the model may not end. (With `ignore_eos` it may, and
        then goes on with control tokens that have no text and no event.)"""
        return msgspec.json.encode(
            {
                "model": model,
                "messages": self.messages,
                "max_tokens": self.num_output_tokens,
                "min_tokens": self.num_output_tokens,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )

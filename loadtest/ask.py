"""One request of a load test, and its body."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from loadtest.workloads import Message

PATH = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. It is sent at `due_s`, or as soon as its user is ready (None)."""

    messages: Sequence[Message]
    num_output_tokens: int
    due_s: float | None = None
    leave_after_pieces: int | None = None

    def body(self, model: str) -> bytes:
        """The request's body, for exactly `num_output_tokens`: before them the model may not end.
        (With `ignore_eos` it could, and would go on with control tokens without text and event.)"""
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

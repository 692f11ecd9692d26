"""The reasons for which sequences are refused and end, as messages name them."""

from typing import Literal

# Why the engine does not take a sequence; all are keys of wire.failures.REASONS.
RefusalReason = Literal[
    "invalid_value",
    "context_length_exceeded",
    "invalid_token_id",
    "unsupported_parameter",
    "not_an_embedding_model",
    "not_a_text_model",
    "overloaded",
    "no_room",
]
# How an output ends, and how a sequence can end besides: keys of wire.failures.REASONS.
StopReason = Literal["stop", "length"]
FinishReason = StopReason | Literal["deadline_exceeded", "invalid_grammar"]

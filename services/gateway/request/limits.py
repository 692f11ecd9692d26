"""The limits of one gateway that its operator sets."""

from dataclasses import dataclass, field

from services.gateway.request.room import ByteLimits


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that the operator sets."""

    default_output_reservation: int = 512
    max_logprobs: int = 262_144
    token_gap_s: float = 20.0
    full_wait_s: float = 2.0
    # The trace of a request whose first token takes longer is kept; 0 = no trace for that.
    slow_first_token_s: float = 10.0
    max_open_requests: int = 4096
    # Of the open requests, those that each tenant may have.
    share_of_requests: int = 1024
    bodies: ByteLimits = field(default_factory=ByteLimits)
    # Of lists of inputs whose answer is vectors.
    vectors: ByteLimits = field(
        default_factory=lambda: ByteLimits(128 * 1024 * 1024, 64 * 1024 * 1024)
    )

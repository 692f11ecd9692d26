"""The ticket of one transfer: the decode worker issues it with every Prefill.

A frame counts only when it carries the ticket's epoch and capability; every other one is foreign
(or of an older attempt) and is dropped without touching the transfer. Knows nothing of streams.

Each side holds a transfer under a lease (decision 0019), for its peer may be gone without a word.
"""

import hmac
from collections.abc import Callable
from dataclasses import dataclass

from baton.handoff.outcomes import BadBlocksCause, DropCause

CAPABILITY_BYTES = 16
# A lease lives so long from its beginning or its last renewal.
LEASE_S = 5.0
RENEW_INTERVAL_S = 1.0
SWEEP_INTERVAL_S = 0.5


class ForeignFrame(Exception):
    """The frame belongs to no live transfer: drop and count it, change nothing."""

    def __init__(self, cause: DropCause) -> None:
        super().__init__(f"foreign frame: {cause}")
        self.cause = cause


class BadBlocks(Exception):
    """The transfer's own data is wrong (checksum, size, place): it can never be completed."""

    def __init__(self, cause: BadBlocksCause, message: str) -> None:
        super().__init__(message)
        self.cause = cause


@dataclass(frozen=True, slots=True)
class Ticket:
    """One transfer of blocks `first_missing_block:num_blocks` of one sequence."""

    xfer_id: int
    request_id: str
    epoch: int
    capability: bytes
    first_missing_block: int
    # Blocks of the whole prompt (and earlier attempts' output), a partial last one included.
    num_blocks: int

    @property
    def num_missing_blocks(self) -> int:
        """Blocks that travel."""
        return self.num_blocks - self.first_missing_block

    def check(self, epoch: int, capability: bytes) -> None:
        """Raises ForeignFrame when a frame's epoch or capability is not this ticket's."""
        if epoch != self.epoch:
            raise ForeignFrame(DropCause.EPOCH)
        self.check_capability(capability)

    def check_capability(self, capability: bytes) -> None:
        """Raises ForeignFrame; compares in constant time."""
        if not hmac.compare_digest(capability, self.capability):
            raise ForeignFrame(DropCause.CAPABILITY)


def new_capability(random_bytes: Callable[[int], bytes]) -> bytes:
    """A fresh secret for one transfer."""
    return random_bytes(CAPABILITY_BYTES)

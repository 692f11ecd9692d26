"""Slot leases: the requests that a router has sent to a worker and no report shows yet.

Each pick takes a lease on its workers. The lease ends when the worker reports the request as
accepted (from then on the worker's own figures contain it), when the request is picked again, or by
its expiry. Without leases, a burst between two reports would go to one worker.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SlotLease:
    """The load of one request on one worker, as the router predicts it."""

    request_id: str
    num_sequences: int
    num_blocks: int
    num_prefill_tokens: int
    expires_at: float


class SlotLeases:
    """One worker's open leases and their sums. All leases live equally long.

    `on_change` is called after each change of the sums.
    """

    def __init__(self) -> None:
        self.on_change: Callable[[], None] = _ignore
        self._leases: dict[str, SlotLease] = {}
        self.num_sequences = 0
        self.num_blocks = 0
        self.num_prefill_tokens = 0

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._leases

    def take(self, lease: SlotLease) -> None:
        """Add a lease, and end an older one of the same request."""
        self.end(lease.request_id)
        self._leases[lease.request_id] = lease
        self._count(lease, 1)

    def end(self, request_id: str) -> None:
        """End a request's lease; unknown ids are ignored."""
        lease = self._leases.pop(request_id, None)
        if lease is not None:
            self._count(lease, -1)

    def expire(self, now: float) -> None:
        """End the leases whose time is over."""
        while self._leases:
            lease = next(iter(self._leases.values()))
            if lease.expires_at > now:
                break
            self.end(lease.request_id)

    def clear(self) -> None:
        """End all leases: their worker is gone."""
        self._leases.clear()
        self.num_sequences = self.num_blocks = self.num_prefill_tokens = 0
        self.on_change()

    def check_integrity(self) -> None:
        """Assert that the sums agree with the leases."""
        leases = self._leases.values()
        assert self.num_sequences == sum(lease.num_sequences for lease in leases)
        assert self.num_blocks == sum(lease.num_blocks for lease in leases)
        assert self.num_prefill_tokens == sum(lease.num_prefill_tokens for lease in leases)

    def _count(self, lease: SlotLease, sign: int) -> None:
        self.num_sequences += sign * lease.num_sequences
        self.num_blocks += sign * lease.num_blocks
        self.num_prefill_tokens += sign * lease.num_prefill_tokens
        self.on_change()


def _ignore() -> None:
    """Change nothing: nobody asked."""

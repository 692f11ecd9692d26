"""One address, and the worker that last registered there: a row of the fleet's table.

Adds up what the worker has reported and what the router has sent it since, which are its slot
leases. Each pick takes a lease on its workers. The lease ends when the worker reports the request
as accepted (from then on the worker's own figures contain it), when the request is picked again, or
by its expiry. Without leases, a burst between two reports would go to one worker. Decides nothing
about other workers.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from baton.wire.limits import num_extra_slots
from services.router.fleet.health import Health, HealthState
from services.router.fleet.reported import Registration, ReportedLoad
from services.router.fleet.speeds import Measured, MeasuredAt
from services.router.fleet.views import Room, Unfit


class SlotLease(NamedTuple):
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
        # The requests that the worker has named and no lease was known of, and until when a peer
        # may still tell of their pick.
        self._early: dict[str, float] = {}
        # The time at which the oldest lease ends; infinite without one.
        self.next_expiry = math.inf
        self.num_sequences = 0
        self.num_blocks = 0
        self.num_prefill_tokens = 0

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._leases

    def take(self, lease: SlotLease) -> None:
        """Add a lease, and end an older one of the same request."""
        if lease.request_id in self._leases:
            self.end(lease.request_id)
        if not self._leases:
            self.next_expiry = lease.expires_at
        self._leases[lease.request_id] = lease
        self.num_sequences += lease.num_sequences
        self.num_blocks += lease.num_blocks
        self.num_prefill_tokens += lease.num_prefill_tokens
        self.on_change()

    def end(self, request_id: str) -> None:
        """End a request's lease; unknown ids are ignored."""
        lease = self._leases.pop(request_id, None)
        if lease is None:
            return
        if lease.expires_at == self.next_expiry:
            oldest = next(iter(self._leases.values()), None)
            self.next_expiry = math.inf if oldest is None else oldest.expires_at
        self.num_sequences -= lease.num_sequences
        self.num_blocks -= lease.num_blocks
        self.num_prefill_tokens -= lease.num_prefill_tokens
        self.on_change()

    def accept(self, request_id: str, now: float, until_s: float) -> None:
        """The worker's own figures contain the request, also if its pick is told later."""
        if request_id in self._leases:
            self.end(request_id)
            return
        while self._early and self._early[first := next(iter(self._early))] <= now:
            del self._early[first]
        self._early[request_id] = until_s

    def was_early(self, request_id: str) -> bool:
        """Return, once, whether the worker has named a request whose pick is told only now."""
        return self._early.pop(request_id, None) is not None

    def expire(self, now: float) -> None:
        """End the leases whose time is over."""
        while self.next_expiry <= now:
            self.end(next(iter(self._leases)))

    def clear(self) -> None:
        """End all leases: their worker is gone."""
        self._leases.clear()
        self._early.clear()
        self.next_expiry = math.inf
        self.num_sequences = self.num_blocks = self.num_prefill_tokens = 0
        self.on_change()

    def check_integrity(self) -> None:
        """Assert that the sums agree with the leases."""
        leases = self._leases.values()
        first = next(iter(leases), None)
        assert self.next_expiry == (math.inf if first is None else first.expires_at)
        assert self.num_sequences == sum(lease.num_sequences for lease in leases)
        assert self.num_blocks == sum(lease.num_blocks for lease in leases)
        assert self.num_prefill_tokens == sum(lease.num_prefill_tokens for lease in leases)


@dataclass(slots=True)
class Worker:
    """One address, and the worker that last registered there.

    It is one row of the table of workers, with a column for each thing that a pick reads. At
    `changed_at` it last became fit or unfit, other than by silence; `num_changes` counts that, and
    each time that it serves other adapters. Since `gone_since` it has been lost and not listed.
    """

    endpoint: str
    registration: Registration
    load: ReportedLoad
    reported_at: float
    changed_at: float
    num_changes: int = 0
    gone_since: float | None = None
    connected: bool = True
    draining: bool = False
    leases: SlotLeases = field(default_factory=SlotLeases)
    health: Health = field(default_factory=Health)
    measured_at: MeasuredAt = field(default_factory=MeasuredAt)
    # Fingerprints by name.
    adapters: Mapping[str, str] = field(default_factory=dict)

    @property
    def measured(self) -> Measured:
        return Measured(self.load, self.measured_at)

    def serves_adapter(self, fingerprint: str) -> bool:
        """The worker serves this adapter; every worker serves none."""
        return not fingerprint or fingerprint in self.adapters.values()

    @property
    def is_stalled(self) -> bool:
        return self.load.is_stalled

    @property
    def step_counter(self) -> int:
        return self.load.step_counter

    @property
    def worker_id(self) -> str:
        return self.registration.worker_id

    @property
    def num_sequences(self) -> int:
        """Sequences that run or wait there, or are on their way."""
        load = self.load
        return load.num_running + load.num_waiting + self.leases.num_sequences

    @property
    def num_queued_prefill_tokens(self) -> int:
        """Prompt tokens to compute there, those on their way included."""
        return self.load.num_queued_prefill_tokens + self.leases.num_prefill_tokens

    @property
    def fault(self) -> Unfit | None:
        """The reason other than a silent or broken stream why it must not be picked now."""
        if self.draining:
            return Unfit.DRAINING
        if self.is_stalled and self.connected:
            return Unfit.STALLED
        return Unfit.EJECTED if self.health.state is HealthState.EJECTED else None

    def room(self) -> Room:
        """Its own figures, less what its open slot leases will take."""
        registration, load, num_sequences = self.registration, self.load, self.num_sequences
        num_promised = load.num_blocks_promised + self.leases.num_blocks
        # The worker sets one block aside for each running sequence, which may grow.
        num_set_aside = num_promised + load.num_running
        num_slots = registration.max_num_seqs
        num_free, num_extra = num_slots - num_sequences, num_extra_slots(num_slots)
        if self.health.state is HealthState.PROBATION and num_sequences:
            num_free = num_extra = 0  # one request at a time
        return Room(
            registration.num_blocks,
            max(0, load.num_blocks_free - num_set_aside),
            num_promised,
            num_slots,
            max(0, num_free),
            max(0, num_extra + min(0, num_free)),
        )


def _ignore() -> None:
    """Change nothing: nobody asked."""

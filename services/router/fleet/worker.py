"""One address, and the worker that last registered there: a row of the fleet's table.

Adds up what the worker has reported and what the router has sent it since. Decides nothing about
others.
"""

from dataclasses import dataclass, field

from services.router.fleet.health import Health, HealthState
from services.router.fleet.reported import Registration, ReportedLoad
from services.router.fleet.slot_lease import SlotLeases
from services.router.fleet.speeds import Measured, MeasuredAt
from services.router.fleet.views import Room, Unfit


@dataclass(slots=True)
class Worker:
    """One address, and the worker that last registered there.

    It is one row of the table of workers, with a column for each thing that a pick reads. At
    `changed_at` it last became fit or unfit, other than by silence. Since `gone_since` it has
    been lost and not listed.
    """

    endpoint: str
    registration: Registration
    load: ReportedLoad
    reported_at: float
    changed_at: float
    gone_since: float | None = None
    connected: bool = True
    draining: bool = False
    leases: SlotLeases = field(default_factory=SlotLeases)
    health: Health = field(default_factory=Health)
    measured_at: MeasuredAt = field(default_factory=MeasuredAt)

    @property
    def measured(self) -> Measured:
        return Measured(self.load, self.measured_at)

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
        num_batch_slots_free = max(0, registration.max_num_seqs - num_sequences)
        if self.health.state is HealthState.PROBATION and num_sequences:
            num_batch_slots_free = 0  # one request at a time
        return Room(
            num_blocks=registration.num_blocks,
            num_blocks_free=max(0, load.num_blocks_free - num_set_aside),
            num_blocks_promised=num_promised,
            num_batch_slots=registration.max_num_seqs,
            num_batch_slots_free=num_batch_slots_free,
        )

"""The table of workers: who is there, how fresh that knowledge is, and how loaded each one is.

One writer per field: a worker's figures come from its reports alone, what the router sent since is
counted apart in slot leases, and both are added up only when a pick looks (`view`). Liveness comes
from reports: a worker is lost when its stream broke, stale when it has been silent. Knows neither
streams nor queues.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from baton.system.clock import Clock
from baton.wire.failures import Incompatible
from services.router.health import Health, HealthState, OutlierDetector
from services.router.picker import BlockShape, Room, WorkerView
from services.router.reported import (
    DECODE,
    PREFILL,
    Registration,
    ReportedLoad,
    ServedModel,
    idle_load,
)
from services.router.settings import Settings
from services.router.slot_lease import SlotLeases
from services.router.speeds import Measured, MeasuredAt, Speeds

_MIN_WORKERS_TO_COMPARE = 2


@dataclass(slots=True)
class Worker:
    """One address and who last registered there. `changed_at`: of whether it may be picked, apart
    from silence. `gone_since`: lost, and listed no longer."""

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
    def shape(self) -> BlockShape:
        registration = self.registration
        block_size = registration.model.block_size
        return BlockShape(registration.kv_spec_digest, block_size, registration.block_bytes)


class Fleet:
    """All workers by endpoint: at most one entry for each listed address, and for each pool one
    that was listed, so that a model whose workers are all away is still known for a while."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._started_at = clock.now()
        self._outliers = OutlierDetector(settings, clock)
        # Where workers are said to be; None until discovery has told.
        self._listed: frozenset[str] | None = None
        self._workers: dict[str, Worker] = {}
        # Derived from the workers at each registration.
        self._pools: dict[tuple[str, int], list[Worker]] = {}
        self._by_id: dict[str, Worker] = {}
        self._models: dict[str, ServedModel] = {}

    def register(self, endpoint: str, registration: Registration) -> bool:
        """A worker introduced itself on a new stream. Returns whether it is a new life of it.

        Raises Incompatible when another connected worker has the same id.
        """
        now = self._clock.now()
        known = self._workers.get(endpoint)
        if known is not None and _same_life(known.registration, registration):
            known.connected = True
            known.reported_at = known.changed_at = now
            return False
        self._make_place(endpoint, registration)
        load = idle_load(registration)
        health = Health() if known is None else known.health.next_life()
        self._workers[endpoint] = Worker(endpoint, registration, load, now, now, health=health)
        self._derive()
        return True

    def _derive(self) -> None:
        self._pools, self._by_id, self._models = {}, {}, {}
        for worker in self._workers.values():
            registration = worker.registration
            key = (registration.model.fp, registration.role)
            self._pools.setdefault(key, []).append(worker)
            self._by_id[worker.worker_id] = worker
            self._models[registration.model.fp] = registration.model

    def _make_place(self, endpoint: str, registration: Registration) -> None:
        """A worker that moved here from a lost address leaves no ghost there."""
        for other in list(self._workers.values()):
            if other.worker_id == registration.worker_id and other.endpoint != endpoint:
                if other.connected:
                    raise Incompatible(f"worker_id {other.worker_id} is in use by {other.endpoint}")
                del self._workers[other.endpoint]

    def expect(self, endpoints: frozenset[str]) -> None:
        """Where workers are said to be now."""
        self._listed = endpoints

    def forget_gone(self, waited_for: Container[str]) -> list[Worker]:
        """Leave out lost workers that are listed no longer: the last of a pool after
        `forget_after_s`, the last of a model only when it is not `waited_for`. Returns them."""
        forgotten = []
        for pool in self._pools.values():
            for worker in list(pool):
                self._note_gone(worker)
                if self._may_forget(worker, waited_for):
                    pool.remove(worker)
                    del self._workers[worker.endpoint]
                    forgotten.append(worker)
        if forgotten:
            self._derive()
        return forgotten

    def _note_gone(self, worker: Worker) -> None:
        if self._listed is None or worker.connected or worker.endpoint in self._listed:
            worker.gone_since = None
        elif worker.gone_since is None:
            worker.gone_since = self._clock.now()

    def _may_forget(self, worker: Worker, waited_for: Container[str]) -> bool:
        if worker.gone_since is None:
            return False
        model_fp, role = worker.registration.model.fp, worker.registration.role
        if len(self.of_model(model_fp, role)) > 1:
            return True
        if self._clock.now() - worker.gone_since < self._settings.forget_after_s:
            return False
        return model_fp not in waited_for or bool(self.of_model(model_fp, _other(role)))

    def report(self, endpoint: str, load: ReportedLoad, accepted_request_ids: list[str]) -> None:
        """The worker's newest figures; they contain the accepted requests."""
        worker = self._workers[endpoint]
        worker.reported_at = self._clock.now()
        if load.is_stalled != worker.load.is_stalled:
            worker.changed_at = worker.reported_at
        worker.measured_at.note(worker.load, load, worker.reported_at)
        worker.load = load
        for request_id in accepted_request_ids:
            worker.leases.end(request_id)

    def heard(self, endpoint: str) -> None:
        """Any report shows that the worker is alive."""
        self._workers[endpoint].reported_at = self._clock.now()

    def drain(self, endpoint: str, draining: bool) -> None:
        worker = self._workers[endpoint]
        if worker.draining != draining:
            worker.draining = draining
            worker.changed_at = self._clock.now()

    def lose(self, endpoint: str) -> bool:
        """The stream to this worker broke. Returns whether that is news."""
        worker = self._workers.get(endpoint)
        if worker is None or not worker.connected:
            return False
        worker.connected = False
        worker.changed_at = self._clock.now()
        worker.leases.clear()
        return True

    def end_leases(self, request_id: str) -> None:
        """The request is not on its way to any worker."""
        for worker in self._workers.values():
            worker.leases.end(request_id)

    def get(self, endpoint: str) -> Worker | None:
        return self._workers.get(endpoint)

    def of_model(self, model_fp: str, role: int) -> list[Worker]:
        """The workers of one pool, ready or not."""
        return self._pools.get((model_fp, role), [])

    def find(self, worker_id: str) -> Worker:
        return self._by_id[worker_id]

    @property
    def models(self) -> Mapping[str, ServedModel]:
        """All models that some worker has registered, ready or not, by fingerprint."""
        return self._models

    def is_settled(self) -> bool:
        """Every listed address has registered, or has had its time to do so."""
        num_expected = len(self._settings.workers if self._listed is None else self._listed)
        if len(self._workers) >= num_expected:
            return True
        return self._clock.now() - self._started_at >= self._settings.settle_s

    def is_isolated(self) -> bool:
        """All of several workers went silent together: the fault is more likely here.

        Then their last known state is used for a while rather than refusing everything.
        """
        workers = self._workers.values()
        if len(workers) < _MIN_WORKERS_TO_COMPARE or not all(map(self._silence, workers)):
            return False
        since = [self._silent_since(worker) for worker in workers]
        together = max(since) - min(since) <= self._settings.stale_after_s
        return together and self._clock.now() - max(since) <= self._settings.isolation_s

    def unfit(self, worker: Worker, isolated: bool = False) -> str:
        """Why no request should go there now, "" = it may."""
        if worker.draining:
            return "draining"
        if worker.is_stalled and worker.connected:
            return "stalled"
        if worker.health.state is HealthState.EJECTED:
            return "ejected"
        return "" if isolated else self._silence(worker)

    def check_health(self, elapsed_s: float) -> list[Worker]:
        """Look at the health of all workers; returns those of which it changed.

        `elapsed_s` is the time since the last look in which this router was awake.
        """
        changed: list[Worker] = []
        for pool in self._pools.values():
            changed += self._outliers.check(pool, lambda worker: not self.unfit(worker), elapsed_s)
        for worker in changed:
            worker.changed_at = self._clock.now()
        return changed

    def failed(self, worker_id: str) -> None:
        """A gateway's request failed at this worker; unknown ids are ignored."""
        if (worker := self._by_id.get(worker_id)) is not None:
            self._outliers.failed(worker.health)

    def unfit_since(self, worker: Worker) -> float:
        """Since when it has been unfit; only for one that is."""
        if worker.draining or not self._silence(worker):
            return worker.changed_at
        return self._silent_since(worker)

    def _silent_since(self, worker: Worker) -> float:
        if not worker.connected:
            return worker.changed_at
        return worker.reported_at + self._settings.stale_after_s

    def _silence(self, worker: Worker) -> str:
        if not worker.connected:
            return "lost"
        silent_s = self._clock.now() - worker.reported_at
        return "stale" if silent_s > self._settings.stale_after_s else ""

    def speeds(self, model_fp: str, role: int) -> Speeds:
        """What the pool's workers are taken to be capable of now."""
        pool = self.of_model(model_fp, role)
        others = self.of_model(model_fp, _other(role))
        return Speeds(
            (worker.measured for worker in pool),
            (worker.measured for worker in others),
            self._settings,
            self._clock.now(),
        )

    def view(
        self, worker: Worker, speeds: Speeds, unfit: str, num_cached_tokens: int
    ) -> WorkerView:
        """The worker as the picker sees it: its own figures plus the open leases."""
        leases = worker.leases
        leases.expire(self._clock.now())
        registration, load = worker.registration, worker.load
        num_sequences = load.num_running + load.num_waiting + leases.num_sequences
        num_promised = load.num_blocks_promised + leases.num_blocks
        # The worker keeps one block back for each running sequence that may grow.
        num_set_aside = num_promised + load.num_running
        num_batch_slots_free = max(0, registration.max_num_seqs - num_sequences)
        if worker.health.state is HealthState.PROBATION and num_sequences:
            num_batch_slots_free = 0  # one request at a time
        return WorkerView(
            worker_id=worker.worker_id,
            unfit=unfit,
            shape=worker.shape,
            room=Room(
                num_blocks=registration.num_blocks,
                num_blocks_free=max(0, load.num_blocks_free - num_set_aside),
                num_blocks_promised=num_promised,
                num_batch_slots=registration.max_num_seqs,
                num_batch_slots_free=num_batch_slots_free,
            ),
            speed=speeds.of(worker.measured),
            num_running=load.num_running,
            num_sequences=num_sequences,
            num_queued_prefill_tokens=load.num_queued_prefill_tokens + leases.num_prefill_tokens,
            num_cached_tokens=num_cached_tokens,
            chunk_tokens=load.chunk_tokens,
        )

    def prefill_tokens_per_s(self, model_fp: str) -> float:
        """Measured rate of the model's ready prefill pool; of decode when there is no such pool."""
        pool = self.of_model(model_fp, PREFILL) or self.of_model(model_fp, DECODE)
        return sum(w.load.prefill_tokens_per_s for w in pool if not self.unfit(w))

    def check_integrity(self) -> None:
        """Assert that names are unique and all leases add up."""
        assert len(self._by_id) == len(self._workers), "two workers of one name"
        assert sum(map(len, self._pools.values())) == len(self._workers)
        for worker in self._workers.values():
            worker.leases.check_integrity()


def _other(role: int) -> int:
    return DECODE if role == PREFILL else PREFILL


def _same_life(known: Registration, new: Registration) -> bool:
    return (known.worker_id, known.boot_epoch, known.model.fp, known.role) == (
        new.worker_id,
        new.boot_epoch,
        new.model.fp,
        new.role,
    )

"""The table of workers: their registrations, their loads, and how recent those are.

One writer per field: a worker's figures come from its reports alone, the requests that the router
has sent since are slot leases, and a pick adds both up (`view`). Liveness comes from reports: a
worker is lost when its stream broke, stale when it has been silent. Knows neither streams nor
queues.
"""

from collections.abc import Container, Mapping, Sequence
from itertools import islice

from baton.system.clock import Clock
from baton.wire.failures import Incompatible
from services.router.fleet.columns import PoolColumns
from services.router.fleet.health import Health, OutlierDetector
from services.router.fleet.reported import (
    DECODE,
    PREFILL,
    Registration,
    ReportedLoad,
    ServedModel,
    idle_load,
)
from services.router.fleet.speeds import Speeds, means_of
from services.router.fleet.views import Unfit, WorkerView
from services.router.fleet.worker import SlotLease, Worker
from services.router.fleet.zones import ZoneLinks
from services.router.settings import Settings

_MIN_WORKERS_TO_COMPARE = 2
# More than one, so that what has expired grows less with each request.
_NUM_SENT_CHECKED = 4
# How long a new router waits for addresses that neither tell their caches nor refuse.
_MEET_S = 1.0


class Fleet:
    """All workers by endpoint: those that are listed or connected, and the last one of each pool.

    So a model whose workers are all away is known until `forget_after_s` is over. It has more than
    ten attributes: the table of workers with its indexes and its columns, the requests on their
    way, and what tells a router that has just started when it knows enough of them.
    """

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._started_at = clock.now()
        self._outliers = OutlierDetector(settings, clock)
        self.links = ZoneLinks(clock, settings.speed_trust_s)
        # The addresses that discovery lists; None until it has.
        self._listed: frozenset[str] | None = None
        # The addresses whose caches are known, and those that could not be reached.
        self._met: set[str] = set()
        self._has_met_all = False
        self._workers: dict[str, Worker] = {}
        # Derived from the workers at each registration.
        self._pools: dict[tuple[str, int], list[Worker]] = {}
        self._by_id: dict[str, Worker] = {}
        self._models: dict[str, ServedModel] = {}
        # Grows with each new process, with each worker that is forgotten, and when all were met.
        self.version = 0
        # The workers that requests are on their way to, with their leases; oldest first.
        self._sent: dict[str, Sequence[tuple[Worker, SlotLease]]] = {}
        # Of the pools that were asked for since then; and each of their workers' place.
        self._columns: dict[tuple[str, int], PoolColumns] = {}
        self._rows: dict[str, tuple[PoolColumns, int]] = {}

    def register(self, endpoint: str, registration: Registration) -> bool:
        """Take in a worker that introduced itself on a new stream; returns whether it is a new
        process.

        Raises Incompatible when another connected worker has the same id.
        """
        now = self._clock.now()
        known = self._workers.get(endpoint)
        if known is not None and _is_same_process(known.registration, registration):
            known.connected = True
            known.reported_at = now
            self._changed(known)
            return False
        self._end_ghost(endpoint, registration)
        load = idle_load(registration)
        health = Health() if known is None else known.health.next_life()
        self._workers[endpoint] = Worker(endpoint, registration, load, now, now, health=health)
        self._derive()
        return True

    def _derive(self) -> None:
        self._pools, self._by_id, self._models = {}, {}, {}
        self._columns, self._rows = {}, {}
        self.version += 1
        for worker in self._workers.values():
            registration = worker.registration
            key = (registration.model.fp, registration.role)
            self._pools.setdefault(key, []).append(worker)
            self._by_id[worker.worker_id] = worker
            self._models[registration.model.fp] = registration.model

    def _end_ghost(self, endpoint: str, registration: Registration) -> None:
        """Drop the row of a worker that has come back at another address."""
        for other in list(self._workers.values()):
            if other.worker_id == registration.worker_id and other.endpoint != endpoint:
                if other.connected:
                    raise Incompatible(f"worker_id {other.worker_id} is in use by {other.endpoint}")
                del self._workers[other.endpoint]

    def expect(self, endpoints: frozenset[str]) -> None:
        """Take the addresses that discovery lists now."""
        self._listed = endpoints

    def forget_gone(self, waited_for: Container[str]) -> list[Worker]:
        """Drop lost workers that are listed no longer, and return them.

        The last one of a pool goes after `forget_after_s`; the last one of a model not while the
        model is `waited_for`.
        """
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
        """Take a worker's newest figures, which contain the accepted requests."""
        worker = self._workers[endpoint]
        worker.reported_at = self._clock.now()
        has_changed = load.is_stalled != worker.load.is_stalled
        worker.measured_at.note(worker.load, load, worker.reported_at)
        if load.far_handoffs != worker.load.far_handoffs:
            self.links.note(worker.registration.zone, worker.load.far_handoffs, load.far_handoffs)
        worker.load = load
        for request_id in accepted_request_ids:
            worker.leases.accept(request_id, worker.reported_at, self.lease_end())
        if has_changed:
            self._changed(worker)
        else:
            self._write_row(worker)

    def heard(self, endpoint: str) -> None:
        """Note that the worker is alive, as any report shows."""
        now = self._workers[endpoint].reported_at = self._clock.now()
        if (place := self._rows.get(endpoint)) is not None:
            columns, row = place
            columns.heard(row, now)

    def drain(self, endpoint: str, draining: bool) -> None:
        worker = self._workers[endpoint]
        if worker.draining != draining:
            worker.draining = draining
            self._changed(worker)

    def serve_adapters(self, endpoint: str, adapters: Mapping[str, str]) -> None:
        """Note the adapters that the worker serves from now on, fingerprints by name."""
        worker = self._workers[endpoint]
        worker.adapters = adapters
        worker.num_changes += 1

    def lose(self, endpoint: str) -> bool:
        """Note that the stream to this worker broke. Returns whether that is news."""
        self.met(endpoint)
        worker = self._workers.get(endpoint)
        if worker is None or not worker.connected:
            return False
        worker.connected = False
        worker.leases.clear()
        self._changed(worker)
        return True

    def take_leases(self, request_id: str, leases: Sequence[tuple[Worker, SlotLease]]) -> None:
        """Count a request that is on its way to these workers and no others."""
        if request_id in self._sent:
            self.end_leases(request_id)
        self._forget_sent()
        for worker, lease in leases:
            worker.leases.take(lease)
        if leases:
            self._sent[request_id] = leases

    def lease_end(self) -> float:
        """The time at which a lease ends that is taken now."""
        return self._clock.now() + self._settings.slot_lease_s

    def end_leases(self, request_id: str) -> bool:
        """End the request's leases: it is not on its way to any worker. Returns whether it was."""
        leases = self._sent.pop(request_id, ())
        for worker, _ in leases:
            worker.leases.end(request_id)
        return bool(leases)

    def _forget_sent(self) -> None:
        """Forget some of the requests whose leases have ended by themselves."""
        now, sent = self._clock.now(), self._sent
        for oldest in list(islice(sent, _NUM_SENT_CHECKED)):
            if sent[oldest][0][1].expires_at > now:
                break
            del sent[oldest]

    def get(self, endpoint: str) -> Worker | None:
        return self._workers.get(endpoint)

    def of_model(self, model_fp: str, role: int) -> list[Worker]:
        """The workers of one pool, ready or not."""
        return self._pools.get((model_fp, role), [])

    def find(self, worker_id: str) -> Worker:
        return self._by_id[worker_id]

    def known(self, worker_id: str) -> Worker | None:
        return self._by_id.get(worker_id)

    @property
    def models(self) -> Mapping[str, ServedModel]:
        """All models that a worker has registered, ready or not, by fingerprint."""
        return self._models

    def is_settled(self) -> bool:
        """Return whether each listed address has registered, or has had the time for it."""
        num_expected = len(self._settings.workers if self._listed is None else self._listed)
        if len(self._workers) >= num_expected:
            return True
        return self._clock.now() - self._started_at >= self._settings.settle_s

    def met(self, endpoint: str) -> None:
        """Note that all that this address has cached is known, or that it cannot be reached."""
        if not self._has_met_all:
            self._met.add(endpoint)

    def has_met_all(self) -> bool:
        """Return whether the cache behind each listed address is known or it could not be reached.

        True once and for all after _MEET_S: a new router that picked earlier would send everything
        to the few workers that it knows, without regard to what the others have cached.
        """
        if not self._has_met_all:
            has_had_time = self._clock.now() - self._started_at >= _MEET_S
            listed = self._settings.workers if self._listed is None else self._listed
            self._has_met_all = has_had_time or self._met.issuperset(listed)
            if self._has_met_all:
                self._met.clear()
                self.version += 1
        return self._has_met_all

    def is_isolated(self) -> bool:
        """Return whether all of several workers went silent together.

        Then the fault is more likely here, and their last known state is used for `isolation_s`:
        better than to refuse all requests.
        """
        workers = self._workers.values()
        if len(workers) < _MIN_WORKERS_TO_COMPARE or not all(map(self._silence, workers)):
            return False
        since = [self._silent_since(worker) for worker in workers]
        together = max(since) - min(since) <= self._settings.stale_after_s
        return together and self._clock.now() - max(since) <= self._settings.isolation_s

    def unfit(self, worker: Worker, isolated: bool = False) -> Unfit | None:
        """The reason why the worker must not be picked now, or None when it may be.

        Silence is not a reason when this router is `isolated`.
        """
        return worker.fault or (None if isolated else self._silence(worker))

    def is_fit(self, worker: Worker, isolated: bool = False) -> bool:
        return self.unfit(worker, isolated) is None

    def check_health(self, elapsed_s: float) -> list[Worker]:
        """Check the health of all workers; returns those whose state changed.

        `elapsed_s` is the time since the last check, without pauses of this router.
        """
        changed: list[Worker] = []
        for pool in self._pools.values():
            changed += self._outliers.check(pool, self.is_fit, elapsed_s)
        for worker in changed:
            self._changed(worker)
        return changed

    def failed(self, worker_id: str) -> None:
        """Count a gateway's request that failed at this worker; unknown ids are ignored."""
        if (worker := self._by_id.get(worker_id)) is not None:
            self._outliers.failed(worker.health)

    def unfit_since(self, worker: Worker) -> float:
        """The time since which an unfit worker has been unfit."""
        if worker.draining or not self._silence(worker):
            return worker.changed_at
        return self._silent_since(worker)

    def _silent_since(self, worker: Worker) -> float:
        if not worker.connected:
            return worker.changed_at
        return worker.reported_at + self._settings.stale_after_s

    def _silence(self, worker: Worker) -> Unfit | None:
        if not worker.connected:
            return Unfit.LOST
        silent_s = self._clock.now() - worker.reported_at
        return Unfit.STALE if silent_s > self._settings.stale_after_s else None

    def speeds(self, model_fp: str, role: int) -> Speeds:
        """The speeds of the pool's workers, as estimated now."""
        now = self._clock.now()
        pool = [worker.measured for worker in self.of_model(model_fp, role)]
        others = (worker.measured for worker in self.of_model(model_fp, _other(role)))
        return Speeds(means_of(pool, others, self._settings, now), self._settings, now)

    def columns(self, model_fp: str, role: int) -> PoolColumns | None:
        """The figures of one pool, kept up to date from now on; None without a worker."""
        key = (model_fp, role)
        if key in self._pools and key not in self._columns:
            pool = self._pools[key]
            self._columns[key] = columns = PoolColumns(pool, self._settings)
            for row, worker in enumerate(pool):
                worker.leases.on_change = columns.on_leases(row)
                self._rows[worker.endpoint] = (columns, row)
        return self._columns.get(key)

    def row(self, endpoint: str) -> tuple[PoolColumns, int] | None:
        """The worker's place in the columns that are kept of its pool."""
        return self._rows.get(endpoint)

    def _changed(self, worker: Worker) -> None:
        """Note that the worker became fit or unfit, or may have."""
        worker.changed_at = self._clock.now()
        worker.num_changes += 1
        self._write_row(worker)

    def _write_row(self, worker: Worker) -> None:
        """Take a change of the worker into the columns that are kept of its pool."""
        if (place := self._rows.get(worker.endpoint)) is not None:
            columns, row = place
            columns.write(row)

    def view(
        self, worker: Worker, speeds: Speeds, unfit: Unfit | None, num_cached_tokens: int
    ) -> WorkerView:
        """The worker as the picker sees it: its own figures plus its open slot leases."""
        load, registration = worker.load, worker.registration
        worker.leases.expire(self._clock.now())
        return WorkerView(
            registration.worker_id,
            unfit,
            registration.shape,
            worker.room(),
            speeds.of(worker.measured),
            load.num_running,
            worker.num_sequences,
            worker.num_queued_prefill_tokens,
            num_cached_tokens,
            load.chunk_tokens,
            registration.zone,
        )

    def num_queued_prefill_tokens(self, worker: Worker) -> int:
        """Prompt tokens to compute there, those on their way included."""
        worker.leases.expire(self._clock.now())
        return worker.num_queued_prefill_tokens

    def check_integrity(self) -> None:
        """Assert that worker ids are unique and all leases add up."""
        assert len(self._by_id) == len(self._workers), "two workers of one id"
        assert sum(map(len, self._pools.values())) == len(self._workers)
        for worker in self._workers.values():
            worker.leases.check_integrity()


def _other(role: int) -> int:
    return DECODE if role == PREFILL else PREFILL


def _is_same_process(known: Registration, new: Registration) -> bool:
    return (known.worker_id, known.boot_epoch, known.model.fp, known.role) == (
        new.worker_id,
        new.boot_epoch,
        new.model.fp,
        new.role,
    )

"""The router without its network: takes reports and picks workers, on any event loop and clock.

Connects report intake, fleet, prefix indexes, one queue per model, and the selector. The servicer
and the watcher call it, and so does the simulation. Clock, randomness and settings are passed in.
"""

import math
from collections.abc import AsyncIterator
from random import Random

from baton.runtime import logs
from baton.system.clock import Clock
from baton.wire.failures import BatonError, Unavailable
from baton.wire.v1 import peers_pb2, router_pb2, worker_pb2
from services.router import instruments
from services.router.admission import AdmissionLog, AdmissionView, Cancellations
from services.router.fleet import stand_ins
from services.router.fleet.fleet import Fleet
from services.router.fleet.health import MAX_TICK_S, HealthState
from services.router.fleet.quarantine import Quarantine
from services.router.fleet.report_intake import ReportIntake
from services.router.fleet.worker import Worker
from services.router.instruments import PickOutcome
from services.router.model_queues import ModelQueues
from services.router.peers.intake import PeerIntake
from services.router.peers.news import PeerNewsLog
from services.router.peers.turns import TURN_S, Turns
from services.router.pick import kept_room
from services.router.pick.head_of_line import ReservedWorkers
from services.router.pick.pick_request import PickRequest
from services.router.pick.selector import Selector
from services.router.pool_gauges import PoolGauges
from services.router.queue.retry_budget import RetryBudget
from services.router.settings import Settings

_log = logs.get("router")


class RouterCore:
    """The whole state of one router.

    It has more than ten attributes because all parts of a router meet here; each decides alone.
    """

    def __init__(self, settings: Settings, clock: Clock, random: Random) -> None:
        self._settings = settings
        self._clock = clock
        self._fleet = Fleet(settings, clock)
        self._intake = ReportIntake(self._fleet, settings.router_id, settings.max_index_hashes)
        self._turns = Turns(settings.router_id, clock)
        reserved = ReservedWorkers(clock, self._turns)
        self._selector = Selector(settings, clock, random, self._intake, reserved)
        self._news = PeerNewsLog(settings, clock)
        self._admission = AdmissionView(self._fleet, settings, clock)
        self._admission_log = AdmissionLog(
            clock, settings.admission_interval_s, self.admission, self.admission_changes
        )
        self._cancellations = Cancellations(clock)
        self._quarantine = Quarantine(clock)
        self._retry_budget = RetryBudget(clock)
        self._gauges = PoolGauges(self._fleet, self._intake)
        self._queues = ModelQueues(settings, self._selector, self._news, clock)
        self._peers = PeerIntake(
            self._fleet, self._selector, self._queues.charge, self._quarantine, self._retry_budget
        )
        self._closed = False

    def hello(self, endpoint: str) -> worker_pb2.ReportAck:
        """Return the first message on a stream to this worker."""
        return self._intake.hello(endpoint)

    def apply_report(self, endpoint: str, report: worker_pb2.Report) -> worker_pb2.ReportAck:
        """Take in a worker's report; returns the acknowledgement to send.

        Raises Incompatible or InvalidRequest when the stream cannot go on: see
        `fleet/report_intake.py`.
        """
        ack = self._intake.take(endpoint, report)
        kind = report.WhichOneof("report")
        if kind == "register":
            self._quarantine.greet(report.register.software_version)
            self._announce(self._at(endpoint), "worker_registered")
        if kind == "draining":
            self._announce(self._at(endpoint), "worker_draining")
        if kind == "snapshot" and not report.snapshot.more:
            self._admission_log.notify()  # a new router may be ready now
        if kind == "adapters":
            self._announce(self._at(endpoint), "worker_adapters")
        if kind in ("register", "load", "snapshot", "adapters"):
            self._wake_queues(self._at(endpoint))
        return ack

    def list_workers(self, endpoints: frozenset[str]) -> None:
        """Take the addresses at which discovery lists workers now."""
        self._fleet.expect(endpoints)

    def lose(self, endpoint: str) -> None:
        """Note that the stream to this worker broke or could not be opened."""
        if self._intake.lose(endpoint):
            self._announce(self._at(endpoint), "worker_lost")
            self._wake_queues(self._at(endpoint))

    def check_health(self, elapsed_s: float) -> None:
        """Check the workers' health, forget workers that are gone for good, publish the gauges.

        `elapsed_s` is the time since the last check.
        """
        self._forget_gone()
        for worker in self._fleet.check_health(min(elapsed_s, MAX_TICK_S)):
            health = worker.health
            self._announce(worker, f"worker_{health.state.value}", cause=health.cause or "")
            if health.cause is not None and health.state is HealthState.EJECTED:
                name = worker.registration.model.name
                instruments.ROUTER_EJECTIONS.labels(name, health.cause).inc()
            self._wake_queues(worker)
        self._gauges.publish(self._queues.num_queued())

    async def pick(
        self, request: router_pb2.PickRequest, timeout_s: float | None = None
    ) -> router_pb2.PickResponse:
        """Pick the pair of workers for a request; waits in its model's queue for room.

        The first token is due in `timeout_s`. Raises ModelNotFound, InvalidRequest (also for a
        request in quarantine), Overloaded (queue full, the first token would come too late, or too
        many requests have failed) and Unavailable (no_worker). Cancelling it leaves the queue and
        ends the request's slot leases.
        """
        if self._closed:
            raise Unavailable("this router is stopping", retry_after_s=1)
        # A gateway repeats a pick when the workers of the earlier one have refused it.
        self._end_leases(request.request_id)
        self._take_reports(request)
        left_s = math.inf if timeout_s is None else timeout_s
        wanted = PickRequest.of(request, self._clock.now(), left_s)
        outcome: str = PickOutcome.CANCELLED
        try:
            is_suspect = self._is_suspect(request)
            if request.has_failed:
                self._retry_budget.spend(has_begun=request.has_begun)
            response = await self._queues.pick(wanted)
            if not request.exclude_worker_ids:
                self._retry_budget.num_first += 1
            has_prefill = response.HasField("prefill")
            outcome = PickOutcome.PAIR if has_prefill else PickOutcome.LOCAL
        except BatonError as error:
            outcome = error.reason
            if outcome == "request_quarantined" and request.num_deaths:
                self._admission_log.notify()  # it is new: gateways get it now
            raise
        finally:
            if outcome not in (PickOutcome.PAIR, PickOutcome.LOCAL):
                self._end_leases(request.request_id)
            self._count(wanted, outcome)
        queued_s = self._clock.now() - wanted.arrived_at
        response.queue_us = round(queued_s * 1e6)
        response.is_suspect = is_suspect
        instruments.ROUTER_QUEUE_SECONDS.labels(self._selector.name(wanted)).observe(queued_s)
        return response

    def cancel(self, request: router_pb2.CancelRequest) -> None:
        """Tell all gateways to end a request. Raises Overloaded."""
        self._cancellations.add(request)

    def _end_leases(self, request_id: str) -> None:
        """End the request's leases, here and at the other routers."""
        if self._fleet.end_leases(request_id):
            self._news.ended(request_id)

    def _take_reports(self, request: router_pb2.PickRequest) -> None:
        """Take in, and pass on to the other routers, what a gateway reports with a pick."""
        if request.has_failed and request.exclude_worker_ids:
            worker_id = request.exclude_worker_ids[-1]
            self._fleet.failed(worker_id)
            self._news.failed(worker_id)
        if request.harmless_fingerprints:
            self._quarantine.clear(request.harmless_fingerprints)
            for fingerprint in request.harmless_fingerprints:
                self._news.harmless(fingerprint)
        if request.quarantined:
            self._quarantine.learn(request.quarantined)
        if request.num_deaths and request.poison_fingerprint:
            self._news.suspected(request.poison_fingerprint, request.num_deaths)

    def _is_suspect(self, request: router_pb2.PickRequest) -> bool:
        """Return whether the request may kill a core. Raises InvalidRequest in quarantine."""
        if not request.num_deaths and not self._quarantine.entries:
            return False
        fingerprint, num_deaths = request.poison_fingerprint, request.num_deaths
        return self._quarantine.admit(fingerprint, num_deaths, request.request_id)

    def follow_news(self) -> AsyncIterator[peers_pb2.PeerNews]:
        """The news of this router, for one of its peers; see `peers/news.py`."""
        return self._news.follow(self._lines, self._is_roomy)

    def take_news(self, router_id: str, news: peers_pb2.PeerNews) -> None:
        """Take in the news of a peer."""
        for event in news.events:
            self._peers.take(event)
        if news.HasField("lines"):
            self._turns.hear(router_id, news.lines)

    def lose_peer(self, router_id: str) -> None:
        """Note that a peer is gone: nobody waits there any more. Its leases end by themselves."""
        self._turns.lose(router_id)

    def _lines(self) -> peers_pb2.PeerLines:
        """The lines of this router, from now on as its peers know them."""
        lines = self._queues.lines()
        self._turns.hear(self._settings.router_id, lines)
        return lines

    def _is_roomy(self, num_requests: int) -> bool:
        """Return whether nobody waits, at no router, and all models have plenty of room for so many
        requests: then what peers do not know yet fills no worker."""
        if self._queues.waited_for() or self._turns.is_any_waiting():
            return False
        return all(kept_room.is_plenty(self._fleet, fp, num_requests) for fp in self._fleet.models)

    def watch_admission(
        self, *, takes_deltas: bool
    ) -> AsyncIterator[router_pb2.WatchAdmissionResponse]:
        """The view of the fleet at once and on change; see `admission.py`."""
        return self._admission_log.follow(takes_deltas=takes_deltas)

    def admission(self) -> router_pb2.WatchAdmissionResponse:
        """Return the view of the fleet as it is now."""
        return self._completed(
            self._admission.whole(self._queues.num_queued(), self._queues.waits_s())
        )

    def admission_changes(self) -> router_pb2.WatchAdmissionResponse:
        """Return what has changed of the view since the last call."""
        return self._completed(
            self._admission.changes(self._queues.num_queued(), self._queues.waits_s())
        )

    def _completed(
        self, view: router_pb2.WatchAdmissionResponse
    ) -> router_pb2.WatchAdmissionResponse:
        """Add to a view what is not of workers."""
        view.quarantined.extend(self._quarantine.reported())
        view.software_version = self._quarantine.newest_version
        view.zone = self._settings.zone
        view.cancelled.extend(self._cancellations.told())
        return view

    def close(self) -> None:
        """Refuse the requests that wait, and end all watches. Final."""
        self._closed = True
        self._queues.refuse_all("this router is stopping")
        self._news.close()
        self._admission_log.close()

    def check_integrity(self) -> None:
        """Assert the invariants of fleet, leases and indexes."""
        self._intake.check_integrity()

    def _forget_gone(self) -> None:
        """Forget workers that are gone for good; with a model's last one, its index and its queue.

        A model for which requests wait stays.
        """
        for worker in self._fleet.forget_gone(self._queues.waited_for()):
            self._announce(worker, "worker_forgotten")
        self._intake.follow_fleet()
        self._selector.follow_fleet()
        self._queues.follow(self._fleet.models.keys())

    def _at(self, endpoint: str) -> Worker:
        worker = self._fleet.get(endpoint)
        assert worker is not None
        return worker

    def _wake_queues(self, worker: Worker) -> None:
        """Try the queues whose requests this worker could take, unless its room is the turn of
        another router."""
        model_fp, role = worker.registration.model.fp, worker.registration.role
        is_peers = (
            self._turns.has_peers
            and role == stand_ins.decoding_role(self._fleet, model_fp)
            and self._turns.note_room(model_fp, worker.worker_id, worker.step_counter)
        )
        self._queues.wake(model_fp, TURN_S if is_peers else 0.0)

    def _announce(self, worker: Worker, event: str, **more: str) -> None:
        _log.info(
            event,
            endpoint=worker.endpoint,
            worker_id=worker.worker_id,
            boot_epoch=worker.registration.boot_epoch,
            role=router_pb2.WorkerRole.Name(worker.registration.role),
            model_name=worker.registration.model.name,
            model_fp=worker.registration.model.fp,
            **more,
        )
        self._admission_log.notify()

    def _count(self, wanted: PickRequest, outcome: str) -> None:
        instruments.ROUTER_PICKS.labels(self._selector.name(wanted), outcome).inc()

"""Takes in the reports of all workers: sequence numbers, restarts, snapshots -> fleet and indexes.

Each stream numbers its reports. A repeat is dropped. After a gap the KV events are incomplete, so
they are ignored until a snapshot arrives, for which the acknowledgement asks. The same goes for an
index that a digest of the worker's cache proves wrong. Until then what is known stays in use. A new
stream begins with Register, and goes on at the place in the KV events where an earlier one of the
same process ended, or with a snapshot. Knows nothing of picks or gRPC.
"""

from dataclasses import dataclass

from baton.runtime import logs
from baton.wire.failures import InvalidRequest
from baton.wire.protocol import PROTOCOL_VERSION
from baton.wire.v1 import worker_pb2
from services.router import instruments
from services.router.fleet.fleet import Fleet
from services.router.fleet.prefix_index import PrefixIndex, hashes_of
from services.router.fleet.reported import adapters_of, load_of, registration_of
from services.router.fleet.worker import Worker

# Entries that count no more leave the memory with each report, so many at once.
SWEPT_HASHES = 2048
# After each snapshot that did not help, twice as many digests are left aside, up to this.
MAX_LEFT_ASIDE = 64

_log = logs.get("router.index")


@dataclass(slots=True)
class _Stream:
    """The position in one worker's stream up to which its reports are taken in.

    `num_built` hashes have come of a snapshot that is not whole yet; None = none has begun.
    """

    seq: int
    awaits_snapshot: bool = True
    num_built: int | None = None


@dataclass(slots=True)
class _Doubt:
    """The repairs of a worker's index since a digest last agreed with it."""

    num_repairs: int = 0
    num_left_aside: int = 0


class ReportIntake:
    """The one writer of the fleet's reported fields and of the prefix indexes."""

    def __init__(self, fleet: Fleet, router_id: str, max_index_hashes: int) -> None:
        self.fleet = fleet
        self._router_id = router_id
        self._max_index_hashes = max_index_hashes
        self._streams: dict[str, _Stream] = {}
        # The place in each worker's KV events that its index stands at; also of lost ones.
        self._places: dict[str, int] = {}
        self._doubts: dict[str, _Doubt] = {}
        self._indexes: dict[str, PrefixIndex] = {}

    def index(self, model_fp: str) -> PrefixIndex:
        """The prefix index of a model that a worker has registered."""
        return self._indexes[model_fp]

    def hello(self, endpoint: str) -> worker_pb2.ReportAck:
        """Return the first message on a stream to a worker."""
        hello = worker_pb2.ReportAck(protocol=PROTOCOL_VERSION, router_id=self._router_id)
        worker, place = self.fleet.get(endpoint), self._places.get(endpoint)
        if worker is not None and place is not None:
            hello.resume.boot_epoch = worker.registration.boot_epoch
            hello.resume.position = place
        return hello

    def take(self, endpoint: str, report: worker_pb2.Report) -> worker_pb2.ReportAck:
        """Take in one report; returns its acknowledgement.

        Raises Incompatible for a registration that cannot be served, InvalidRequest for a stream
        that does not begin with Register or has malformed hashes. The stream cannot go on then.
        """
        kind = report.WhichOneof("report")
        if kind == "register":
            self._register(endpoint, report)
            return worker_pb2.ReportAck(seq=report.seq)
        stream, worker = self._streams.get(endpoint), self.fleet.get(endpoint)
        if stream is None or worker is None:
            raise InvalidRequest("a report came before Register")
        self.fleet.heard(endpoint)
        self._indexes[worker.registration.model.fp].sweep(SWEPT_HASHES)
        if self._is_repeat(stream, report, kind):
            instruments.ROUTER_REPORTS_DROPPED.labels(cause="repeat").inc()
            return worker_pb2.ReportAck(seq=stream.seq)
        is_gap = report.seq > stream.seq + 1
        if is_gap:
            self._missed(stream, worker)
        stream.seq = report.seq
        is_wrong = self._apply(stream, worker, report, kind)
        return worker_pb2.ReportAck(seq=stream.seq, want_snapshot=is_gap or is_wrong)

    def lose(self, endpoint: str) -> bool:
        """Note that the stream is gone. Returns whether that is news.

        The worker's index stays: the next stream may go on where this one ended.
        """
        self._streams.pop(endpoint, None)
        worker = self.fleet.get(endpoint)
        if worker is not None:
            index = self._indexes[worker.registration.model.fp]
            index.abandon(endpoint)
            if endpoint not in self._places:
                index.clear(endpoint)
        return self.fleet.lose(endpoint)

    def follow_fleet(self) -> None:
        """Make an index for each model of the fleet, and drop all others; forget workers that
        left."""
        served = self.fleet.models.keys()
        for model_fp in self._indexes.keys() - served:
            del self._indexes[model_fp]
        for model_fp in served - self._indexes.keys():
            self._indexes[model_fp] = PrefixIndex(self._max_index_hashes)
        for endpoint in [each for each in self._places if self.fleet.get(each) is None]:
            self._forget(endpoint)
        for index in self._indexes.values():
            index.sweep(SWEPT_HASHES)

    def check_integrity(self) -> None:
        """Assert what must hold between two reports."""
        self.fleet.check_integrity()
        assert self._indexes.keys() == self.fleet.models.keys()
        for index in self._indexes.values():
            index.check_integrity()

    def _register(self, endpoint: str, report: worker_pb2.Report) -> None:
        registration = registration_of(report.register)
        if self.fleet.register(endpoint, registration):
            self._forget(endpoint)
        self._streams[endpoint] = _Stream(report.seq)
        self.follow_fleet()
        self._indexes[registration.model.fp].abandon(endpoint)

    def _forget(self, endpoint: str) -> None:
        """Forget what this worker's last process held."""
        self._places.pop(endpoint, None)
        self._doubts.pop(endpoint, None)
        for index in self._indexes.values():
            index.clear(endpoint)
            index.abandon(endpoint)

    def _missed(self, stream: _Stream, worker: Worker) -> None:
        """Note that KV events were missed: what is known stays in use until a snapshot comes."""
        instruments.ROUTER_REPORTS_DROPPED.labels(cause="gap").inc()
        stream.awaits_snapshot = True
        stream.num_built = None
        self._places.pop(worker.endpoint, None)
        self._indexes[worker.registration.model.fp].abandon(worker.endpoint)

    def _is_repeat(self, stream: _Stream, report: worker_pb2.Report, kind: str | None) -> bool:
        if report.seq == stream.seq:
            # The parts of one snapshot share a number.
            return kind != "snapshot" or stream.num_built is None
        return report.seq < stream.seq

    def _apply(
        self, stream: _Stream, worker: Worker, report: worker_pb2.Report, kind: str | None
    ) -> bool:
        """Take a report in; returns whether it shows that the index is wrong."""
        if kind == "load":
            load = load_of(report.load, worker.registration)
            self.fleet.report(worker.endpoint, load, list(report.load.accepted_request_ids))
        elif kind == "draining":
            self.fleet.drain(worker.endpoint, report.draining)
        elif kind == "adapters":
            self.fleet.serve_adapters(worker.endpoint, adapters_of(report.adapters))
        elif kind == "snapshot":
            self._take_snapshot(stream, worker, report.snapshot)
        elif kind == "kv_events":
            return self._take_kv_events(stream, worker, report.kv_events)
        elif kind == "digest":
            return self._is_drifted(worker, report.digest)
        return False

    def _take_snapshot(
        self, stream: _Stream, worker: Worker, snapshot: worker_pb2.KvSnapshot
    ) -> None:
        """Take a part of a snapshot, which counts when all have come."""
        index = self._indexes[worker.registration.model.fp]
        # A worker cannot hold more hashes than blocks.
        num_left = worker.registration.num_blocks - (stream.num_built or 0)
        hashes = hashes_of(snapshot.hashes)[:num_left]
        self._count_evicted(index.build(worker.endpoint, hashes))
        stream.num_built = (stream.num_built or 0) + len(hashes)
        if snapshot.more:
            return
        stream.num_built = None
        stream.awaits_snapshot = False
        index.finish(worker.endpoint)
        self.fleet.met(worker.endpoint)
        if snapshot.HasField("position"):
            self._places[worker.endpoint] = snapshot.position

    def _take_kv_events(
        self, stream: _Stream, worker: Worker, kv_events: worker_pb2.KvEvents
    ) -> bool:
        """Take in events that follow on what is known; returns whether some were missed."""
        place = self._places.get(worker.endpoint)
        if place is None and stream.awaits_snapshot:
            return False
        if place is not None and kv_events.HasField("position"):
            if kv_events.position != place:
                self._missed(stream, worker)
                return True
            self._places[worker.endpoint] = place + len(kv_events.events)
        for event in kv_events.events:
            self._take_kv_event(worker, event)
        return False

    def _is_drifted(self, worker: Worker, digest: worker_pb2.KvDigest) -> bool:
        """Compare the index with the worker's own cache; returns whether to build it anew."""
        if digest.position != self._places.get(worker.endpoint):
            return False
        doubt = self._doubts.setdefault(worker.endpoint, _Doubt())
        if doubt.num_left_aside:
            doubt.num_left_aside -= 1
            return False
        own = self._indexes[worker.registration.model.fp].digest(worker.endpoint)
        if own == (digest.num_hashes, int.from_bytes(digest.xor, "little")):
            doubt.num_repairs = 0
            return False
        doubt.num_left_aside = min(2**doubt.num_repairs - 1, MAX_LEFT_ASIDE)
        doubt.num_repairs = min(doubt.num_repairs + 1, MAX_LEFT_ASIDE)
        instruments.ROUTER_INDEX_DRIFTS.labels(worker.registration.model.name).inc()
        _log.warning(
            "index_drifted",
            worker_id=worker.worker_id,
            num_hashes=own[0],
            num_cached=digest.num_hashes,
        )
        return True

    def _take_kv_event(self, worker: Worker, event: worker_pb2.KvEvent) -> None:
        index = self._indexes[worker.registration.model.fp]
        kind = event.WhichOneof("event")
        if kind == "stored":
            hashes = hashes_of(event.stored.hashes)
            self._count_evicted(index.stored(worker.endpoint, hashes))
        elif kind == "removed":
            index.removed(worker.endpoint, hashes_of(event.removed.hashes))
        elif kind == "all_cleared":
            index.clear(worker.endpoint)

    def _count_evicted(self, num_hashes: int) -> None:
        if num_hashes:
            instruments.ROUTER_INDEX_EVICTED.inc(num_hashes)

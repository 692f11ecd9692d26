"""Takes in the reports of all workers: sequence numbers, restarts, snapshots -> fleet and indexes.

Each stream numbers its reports. A repeat is dropped. After a gap the KV events are incomplete, so
they are ignored until a snapshot arrives, for which the acknowledgement asks. A new stream always
begins with Register and a snapshot. Knows nothing of picks or gRPC.
"""

from dataclasses import dataclass, field

from baton.wire.failures import InvalidRequest
from baton.wire.prefix_hash import HASH_BYTES
from baton.wire.protocol import PROTOCOL_VERSION
from baton.wire.v1 import worker_pb2
from services.router import instruments
from services.router.fleet.fleet import Fleet
from services.router.fleet.prefix_index import PrefixIndex, hashes_of
from services.router.fleet.reported import load_of, registration_of
from services.router.fleet.worker import Worker


@dataclass(slots=True)
class _Stream:
    """The position in one worker's stream up to which its reports are taken in."""

    seq: int
    awaits_snapshot: bool = True
    snapshot: list[bytes] = field(default_factory=list)


class ReportIntake:
    """The one writer of the fleet's reported fields and of the prefix indexes."""

    def __init__(self, fleet: Fleet, router_id: str, max_index_hashes: int) -> None:
        self._fleet = fleet
        self._router_id = router_id
        self._max_index_hashes = max_index_hashes
        self._streams: dict[str, _Stream] = {}
        self._indexes: dict[str, PrefixIndex] = {}

    def index(self, model_fp: str) -> PrefixIndex:
        """The prefix index of a model that a worker has registered."""
        return self._indexes[model_fp]

    def hello(self) -> worker_pb2.ReportAck:
        """Return the first message on a stream to a worker."""
        return worker_pb2.ReportAck(protocol=PROTOCOL_VERSION, router_id=self._router_id)

    def take(self, endpoint: str, report: worker_pb2.Report) -> worker_pb2.ReportAck:
        """Take in one report; returns its acknowledgement.

        Raises Incompatible for a registration that cannot be served, InvalidRequest for a stream
        that does not begin with Register or has malformed hashes. The stream cannot go on then.
        """
        kind = report.WhichOneof("report")
        if kind == "register":
            self._register(endpoint, report)
            return worker_pb2.ReportAck(seq=report.seq)
        stream, worker = self._streams.get(endpoint), self._fleet.get(endpoint)
        if stream is None or worker is None:
            raise InvalidRequest("a report came before Register")
        self._fleet.heard(endpoint)
        want_snapshot = False
        if self._is_repeat(stream, report, kind):
            instruments.ROUTER_REPORTS_DROPPED.labels(cause="repeat").inc()
            return worker_pb2.ReportAck(seq=stream.seq)
        if report.seq > stream.seq + 1:
            instruments.ROUTER_REPORTS_DROPPED.labels(cause="gap").inc()
            stream.awaits_snapshot = want_snapshot = True
            stream.snapshot.clear()
        stream.seq = report.seq
        self._apply(stream, worker, report, kind)
        return worker_pb2.ReportAck(seq=stream.seq, want_snapshot=want_snapshot)

    def lose(self, endpoint: str) -> bool:
        """Note that the stream is gone; the next one begins anew. Returns whether that is news."""
        self._streams.pop(endpoint, None)
        worker = self._fleet.get(endpoint)
        if worker is not None:
            self._indexes[worker.registration.model.fp].clear(endpoint)
        return self._fleet.lose(endpoint)

    def follow_fleet(self) -> None:
        """Make an index for each model of the fleet, and drop all others."""
        served = self._fleet.models.keys()
        for model_fp in self._indexes.keys() - served:
            del self._indexes[model_fp]
        for model_fp in served - self._indexes.keys():
            self._indexes[model_fp] = PrefixIndex(self._max_index_hashes)

    def check_integrity(self) -> None:
        """Assert what must hold between two reports."""
        self._fleet.check_integrity()
        assert self._indexes.keys() == self._fleet.models.keys()
        for index in self._indexes.values():
            index.check_integrity()

    def _register(self, endpoint: str, report: worker_pb2.Report) -> None:
        registration = registration_of(report.register)
        known = self._fleet.get(endpoint)
        if self._fleet.register(endpoint, registration) and known is not None:
            self._indexes[known.registration.model.fp].clear(endpoint)
        self._streams[endpoint] = _Stream(report.seq)
        self.follow_fleet()

    def _is_repeat(self, stream: _Stream, report: worker_pb2.Report, kind: str | None) -> bool:
        if report.seq == stream.seq:
            # The parts of one snapshot share a number.
            return not (kind == "snapshot" and stream.snapshot)
        return report.seq < stream.seq

    def _apply(
        self, stream: _Stream, worker: Worker, report: worker_pb2.Report, kind: str | None
    ) -> None:
        if kind == "load":
            load = load_of(report.load, worker.registration)
            self._fleet.report(worker.endpoint, load, list(report.load.accepted_request_ids))
        elif kind == "draining":
            self._fleet.drain(worker.endpoint, report.draining)
        elif kind == "snapshot":
            self._take_snapshot(stream, worker, report.snapshot)
        elif kind == "kv_events" and not stream.awaits_snapshot:
            for event in report.kv_events.events:
                self._take_kv_event(worker, event)

    def _take_snapshot(
        self, stream: _Stream, worker: Worker, snapshot: worker_pb2.KvSnapshot
    ) -> None:
        num_before = sum(map(len, stream.snapshot)) // HASH_BYTES
        if num_before <= worker.registration.num_blocks:
            stream.snapshot.append(snapshot.hashes)
        if snapshot.more:
            return
        whole = b"".join(stream.snapshot)
        stream.snapshot.clear()
        stream.awaits_snapshot = False
        # A worker cannot hold more hashes than blocks.
        whole = whole[: worker.registration.num_blocks * HASH_BYTES]
        index = self._indexes[worker.registration.model.fp]
        self._count_evicted(index.replace(worker.endpoint, hashes_of(whole)))

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

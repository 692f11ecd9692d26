"""The KV events of a worker's process, numbered, and each router's place among them.

The latest events are kept once for all routers. A router whose stream broke goes on from its place;
one that is too far behind, or new, gets a snapshot. Knows no streams and no other reports.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from baton.engine.protocol.messages import StepEvents
from baton.wire.prefix_hash import HASH_BYTES
from baton.wire.v1 import worker_pb2

# Hashes in one KvSnapshot part or KvEvents report: a router takes so many in in a millisecond.
MAX_REPORT_HASHES = 4096
# The latest events are kept up to so many hashes (1 MiB), and so many events.
MAX_LOG_HASHES = 65_536
MAX_LOG_EVENTS = 16_384


def num_hashes_of(event: worker_pb2.KvEvent) -> int:
    return (len(event.stored.hashes) + len(event.removed.hashes)) // HASH_BYTES


def kv_events_of(events: StepEvents) -> list[worker_pb2.KvEvent]:
    """The turn's KV events on the wire, removed before stored, each within MAX_REPORT_HASHES."""
    size = MAX_REPORT_HASHES * HASH_BYTES
    wire = [
        worker_pb2.KvEvent(removed=worker_pb2.KvRemoved(hashes=events.removed_hashes[i : i + size]))
        for i in range(0, len(events.removed_hashes), size)
    ]
    for stored in events.stored:
        parent = stored.parent_hash
        for i in range(0, len(stored.hashes), size):
            part = stored.hashes[i : i + size]
            wire.append(
                worker_pb2.KvEvent(stored=worker_pb2.KvStored(parent_hash=parent, hashes=part))
            )
            parent = part[-HASH_BYTES:]
    return wire


class KvLog:
    """The latest events. A position is the number of all events before it."""

    def __init__(self) -> None:
        self._events: deque[worker_pb2.KvEvent] = deque()
        self._num_hashes = 0
        self.end = 0

    @property
    def start(self) -> int:
        """The position of the oldest event that is kept."""
        return self.end - len(self._events)

    def append(self, events: Sequence[worker_pb2.KvEvent]) -> None:
        """Add the events of one turn; the oldest of all make room."""
        self._events.extend(events)
        self.end += len(events)
        self._num_hashes += sum(map(num_hashes_of, events))
        while self._num_hashes > MAX_LOG_HASHES or len(self._events) > MAX_LOG_EVENTS:
            self._num_hashes -= num_hashes_of(self._events.popleft())

    def since(self, position: int) -> list[worker_pb2.KvEvent]:
        """The events from a position that is kept."""
        return list(islice(self._events, position - self.start, None))


class KvCursor:
    """One router's place in the log.

    It begins at `place` if that is kept, else with a snapshot, for which `request_snapshot` asks.
    """

    def __init__(
        self, log: KvLog, request_snapshot: Callable[[], None], place: int | None = None
    ) -> None:
        self._log = log
        self._request_snapshot = request_snapshot
        self._snapshot: bytes | None = None
        # None while a snapshot is awaited.
        self._position = place
        if place is None or not log.start <= place <= log.end:
            self._await_snapshot()

    @property
    def is_up_to_date(self) -> bool:
        """The router has been sent all events."""
        return self._snapshot is None and self._position == self._log.end

    @property
    def has_news(self) -> bool:
        return self._position is not None and not self.is_up_to_date

    def follow_log(self) -> None:
        """Ask for a snapshot when the log has dropped what this router has not got."""
        if self._position is not None and self._position < self._log.start:
            self._await_snapshot()

    def want_snapshot(self) -> None:
        """Begin again with a snapshot."""
        if self._position is not None:
            self._await_snapshot()

    def take_snapshot(self, hashes: bytes) -> None:
        """Take all stored hashes as of now, if they are awaited; later events build on them."""
        if self._position is None:
            self._snapshot, self._position = hashes, self._log.end

    def pop_snapshot(self) -> tuple[int, bytes] | None:
        """The snapshot to send before all events, once, and its position."""
        if self._snapshot is None or self._position is None:
            return None
        snapshot, self._snapshot = self._snapshot, None
        return self._position, snapshot

    def pop_events(self) -> tuple[int, list[worker_pb2.KvEvent]]:
        """The events to send, in the core's order, once, and the position of the first."""
        if self._position is None:
            return 0, []
        position, self._position = self._position, self._log.end
        return position, self._log.since(position)

    def _await_snapshot(self) -> None:
        self._position = self._snapshot = None
        self._request_snapshot()

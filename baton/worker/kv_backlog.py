"""The KV events that one router has not got yet, or the snapshot that it gets instead.

Knows no streams and no other reports.
"""

from collections.abc import Callable

from baton.wire.v1 import worker_pb2

# A router that has this many hashes waiting starts again from a snapshot (1 MiB).
MAX_BACKLOG_HASHES = 65_536


class KvBacklog:
    """Begins by waiting for a snapshot; `request_snapshot` asks for a new one."""

    def __init__(self, request_snapshot: Callable[[], None]) -> None:
        self._request_snapshot = request_snapshot
        self._awaits_snapshot = True
        self._snapshot: bytes | None = None
        self._events: list[worker_pb2.KvEvent] = []
        self._num_hashes = 0

    @property
    def has_news(self) -> bool:
        return bool(self._events) or self._snapshot is not None

    def take_snapshot(self, hashes: bytes) -> None:
        """Take all stored hashes as of now, if they are awaited; later events build on them."""
        if self._awaits_snapshot:
            self._awaits_snapshot = False
            self._snapshot = hashes
            self._clear_events()

    def take(self, events: list[worker_pb2.KvEvent], num_hashes: int) -> None:
        """Take the events of one turn. Too many waiting ones make room for a new snapshot."""
        if self._awaits_snapshot:
            return
        self._events += events
        self._num_hashes += num_hashes
        if self._num_hashes > MAX_BACKLOG_HASHES:
            self.want_snapshot()

    def want_snapshot(self) -> None:
        """Forget the events that wait: the router gets a snapshot instead."""
        if self._awaits_snapshot:
            return
        self._awaits_snapshot = True
        self._snapshot = None
        self._clear_events()
        self._request_snapshot()

    def pop_snapshot(self) -> bytes | None:
        """The snapshot to send before all events, once."""
        snapshot, self._snapshot = self._snapshot, None
        return snapshot

    def pop_events(self) -> list[worker_pb2.KvEvent]:
        """The events to send, in the core's order, once."""
        events = self._events
        self._clear_events()
        return events

    def _clear_events(self) -> None:
        self._events = []
        self._num_hashes = 0

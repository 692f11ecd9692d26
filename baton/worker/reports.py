"""A worker's reports to the routers: its registration, load, prefix cache, adapters, and drain.

`ReportLog` takes the core's events once and feeds any number of router streams, each a
`ReportSubscription` with its own sequence numbers, pace and place in the KV events (`kv_log.py`). A
subscription starts with Register and a snapshot of the stored hashes, or where an earlier one
ended; after that come load (coalesced), KV events (in the core's order, never coalesced away) and
now and then a digest of the prefix cache. One that falls too far behind gets a new snapshot. The
first load also names the requests that were accepted shortly before: the peers of a new router tell
it of their picks, which it would count besides. Knows neither grpc nor what a router does with it.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator

from baton.engine.protocol.messages import StepEvents
from baton.system.clock import Clock
from baton.wire.failures import Overloaded
from baton.wire.prefix_hash import HASH_BYTES
from baton.wire.v1 import router_pb2, worker_pb2
from baton.worker.kv_log import MAX_REPORT_HASHES, KvCursor, KvLog, kv_events_of, num_hashes_of

MAX_ROUTERS = 16
# Load and KV events leave at most once in this time ...
PACE_S = 0.05
# ... and load at least once in this time, so that routers can tell silence from idleness.
HEARTBEAT_S = 0.25
# A router that has not acknowledged this many reports gets nothing new until it does.
MAX_UNACKNOWLEDGED = 64
# A digest of the prefix cache goes with every so many reports: each second of a busy worker.
DIGEST_EVERY = 20
# Beyond this, the oldest names are dropped: the router's slot leases expire by themselves.
MAX_ACCEPTED_IDS = 4096
# A router that comes later is told them for so long: a slot lease lives shorter.
ACCEPTED_S = 5.0
# Of the mean wait for a step: it follows a batch that grows within some ten requests.
_SHARE_OF_NEWEST_WAIT = 0.2


class ReportLog:
    """The worker's one source of reports; lives on the front's event loop.

    `request_snapshot` asks the core for all hashes in its prefix cache; the answer comes back in
    `StepEvents.snapshot`, maybe late, but in order with the KV events. `totals` tell its uptime.
    """

    def __init__(
        self,
        register: worker_pb2.Register,
        request_snapshot: Callable[[], None],
        clock: Clock,
        totals: Callable[[], router_pb2.EngineTotals] = router_pb2.EngineTotals,
    ) -> None:
        self.register = register
        self.draining = False
        self.closed = False
        self.load = worker_pb2.Load(
            num_blocks_total=register.num_blocks, num_blocks_free=register.num_blocks
        )
        # None = nothing was told of any.
        self.adapters: worker_pb2.AdapterList | None = None
        self.kv_log = KvLog()
        # The digest of the prefix cache at the end of the log; None before the core's first turn.
        self.digest: tuple[int, int] | None = None
        self.totals = totals
        self._clock = clock
        # With their times, for routers that come later.
        self._accepted: deque[tuple[float, str]] = deque(maxlen=MAX_ACCEPTED_IDS)
        self._request_snapshot = request_snapshot
        self._snapshot_requested = False
        # Sets of objects have no order that a seed could repeat.
        self._subscriptions: dict[ReportSubscription, None] = {}
        self._acknowledged_some = asyncio.Event()

    def apply(self, events: StepEvents) -> None:
        """Take in one turn of the core: its load, its KV events, perhaps a snapshot."""
        self.load = self._load_of(events)
        if events.snapshot is not None:
            self._snapshot_requested = False
        self.kv_log.append(kv_events_of(events))
        self.digest = events.num_cached_hashes, events.cache_digest
        for subscription in self._subscriptions:
            subscription.take_turn(events.snapshot)

    def accepted(self, request_id: str) -> None:
        """This request is in the core's load from now on, or was refused, or has ended.

        Call it while handling the StepEvents that show it, in the same turn as `apply`.
        """
        self._accepted.append((self._clock.now(), request_id))
        for subscription in self._subscriptions:
            subscription.take_accepted(request_id)

    def just_accepted(self) -> list[str]:
        """The requests of the last ACCEPTED_S, the oldest first."""
        oldest = self._clock.now() - ACCEPTED_S
        while self._accepted and self._accepted[0][0] < oldest:
            self._accepted.popleft()
        return [request_id for _, request_id in self._accepted]

    def set_stalled(self, stalled: bool) -> None:
        """The core stands still, or moves again; told at once."""
        load = worker_pb2.Load()
        load.CopyFrom(self.load)
        load.stalled = stalled
        self.load = load
        for subscription in self._subscriptions:
            subscription.wake()

    def set_handoff_speed(self, bytes_per_s: float, handoff_s: float) -> None:
        """Measured: of large handoffs the rate, and how long small ones take; 0 = not yet. They
        travel with the next load."""
        self.load.handoff_bytes_per_s = bytes_per_s
        self.load.handoff_s = handoff_s

    def set_far_handoff_speed(self, far: worker_pb2.FarHandoff) -> None:
        """The same for handoffs from another zone."""
        others = [each for each in self.load.far_handoffs if each.zone != far.zone]
        self.load.ClearField("far_handoffs")
        self.load.far_handoffs.extend([*others, far])

    def observe_step_wait(self, wait_s: float) -> None:
        """A request waited so long until the core had room for it. While nothing runs there is no
        step to wait for."""
        if self.load.num_running:
            mean_s = self.load.step_wait_s
            newest = _SHARE_OF_NEWEST_WAIT if mean_s else 1.0
            self.load.step_wait_s = mean_s + newest * (wait_s - mean_s)

    def adapter_names(self) -> dict[str, str]:
        """The names of the adapters that the worker serves, by fingerprint."""
        adapters = () if self.adapters is None else self.adapters.adapters
        return {each.fingerprint: each.name for each in adapters}

    def serve_adapters(self, adapters: worker_pb2.AdapterList) -> None:
        """The adapters that the worker serves from now on."""
        self.adapters = adapters
        for subscription in self._subscriptions:
            subscription.wake()

    def set_draining(self) -> None:
        """Take no new requests from now on. Cannot be undone."""
        self.draining = True
        for subscription in self._subscriptions:
            subscription.wake()

    async def draining_taken(self, timeout_s: float) -> bool:
        """Wait until every router has acknowledged that this worker drains, for at most
        `timeout_s`; whether that was so. Picks that were made before may still be on their way."""
        try:
            async with asyncio.timeout(timeout_s):
                while not all(each.draining_is_taken for each in self._subscriptions):
                    self._acknowledged_some.clear()
                    await self._acknowledged_some.wait()
        except TimeoutError:
            return False
        return True

    def note_taken(self) -> None:
        """A router has acknowledged something, or left."""
        self._acknowledged_some.set()

    def close(self) -> None:
        """End all subscriptions, so that the server can stop."""
        self.closed = True
        for subscription in self._subscriptions:
            subscription.wake()

    @contextlib.contextmanager
    def subscribe(self, place: int | None = None) -> "Iterator[ReportSubscription]":
        """A new router's view, from Register on; `place` is its place in the KV events, if it has
        one. Raises Overloaded at MAX_ROUTERS."""
        if len(self._subscriptions) >= MAX_ROUTERS:
            raise Overloaded(f"{MAX_ROUTERS} routers watch this worker already")
        subscription = ReportSubscription(self, place)
        self._subscriptions.setdefault(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.pop(subscription, None)
            self.note_taken()

    def want_snapshot(self) -> None:
        """Ask the core once, however many subscriptions wait for the answer."""
        if not self._snapshot_requested:
            self._snapshot_requested = True
            self._request_snapshot()

    def _load_of(self, events: StepEvents) -> worker_pb2.Load:
        load = events.load
        return worker_pb2.Load(
            step_counter=events.step,
            num_running=load.num_running,
            # To a router both are sequences that will be in the batch.
            num_waiting=load.num_waiting + load.num_not_started,
            num_blocks_total=self.register.num_blocks,
            num_blocks_free=load.num_blocks_free,
            num_blocks_promised=load.num_blocks_promised,
            num_queued_prefill_tokens=load.num_queued_prefill_tokens,
            prefill_tokens_per_s=load.prefill_tokens_per_s,
            decode_step_s=load.decode_step_s,
            handoff_bytes_per_s=self.load.handoff_bytes_per_s,
            handoff_s=self.load.handoff_s,
            far_handoffs=self.load.far_handoffs,
            stalled=self.load.stalled,
            chunk_tokens=load.chunk_tokens,
            step_wait_s=self.load.step_wait_s,
        )


class ReportSubscription:
    """One router's stream: the news that it has not got yet, and the time when it may."""

    def __init__(self, log: ReportLog, place: int | None = None) -> None:
        self._log = log
        self._seq = 0
        self._acknowledged = 0
        self._reported_load: worker_pb2.Load | None = None
        self._reported_adapters: worker_pb2.AdapterList | None = None
        # The number of the report that says so.
        self._draining_seq: int | None = None
        self._cursor = KvCursor(log.kv_log, log.want_snapshot, place)
        self._num_since_digest = 0
        # The log is closed, and what it had until then was told.
        self._said_last = False
        self._accepted = deque(log.just_accepted(), maxlen=MAX_ACCEPTED_IDS)
        self._changed = asyncio.Event()

    @property
    def draining_is_taken(self) -> bool:
        """The router has acknowledged that this worker drains."""
        return self._draining_seq is not None and self._acknowledged >= self._draining_seq

    def take_turn(self, snapshot: bytes | None) -> None:
        """The core has made a turn, whose KV events are in the log, and may have sent all hashes
        as they are now."""
        self._cursor.follow_log()
        if snapshot is not None:
            self._cursor.take_snapshot(snapshot)
        self._changed.set()

    def take_accepted(self, request_id: str) -> None:
        self._accepted.append(request_id)
        self._changed.set()

    def wake(self) -> None:
        self._changed.set()

    def acknowledge(self, ack: worker_pb2.ReportAck) -> None:
        """The router has taken everything up to `ack.seq`, and may ask for a snapshot."""
        self._acknowledged = max(self._acknowledged, min(ack.seq, self._seq))
        if ack.want_snapshot:
            self._cursor.want_snapshot()
        self._changed.set()
        self._log.note_taken()

    async def next_reports(self) -> list[worker_pb2.Report]:
        """The next reports to write, in order; waits for a change, a heartbeat and the pace.

        Register is alone in the first answer. When the log is closed, what the worker did until
        then comes once more, then an empty answer. Call it again only after all were written.
        """
        if self._seq == 0:
            return [self._report(register=self._log.register)]
        if self._seq > 1:
            await asyncio.sleep(PACE_S)
        await self._wait_for_acknowledgements()
        try:
            async with asyncio.timeout(HEARTBEAT_S - PACE_S):
                while not self._has_news():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass
        if self._said_last:
            return []
        self._said_last = self._log.closed
        return self._collect()

    async def _wait_for_acknowledgements(self) -> None:
        while self._seq - self._acknowledged >= MAX_UNACKNOWLEDGED and not self._log.closed:
            self._changed.clear()
            await self._changed.wait()

    def _has_news(self) -> bool:
        return bool(
            self._cursor.has_news
            or self._accepted
            or self._log.closed
            or self._must_report_draining
            or self._log.adapters is not self._reported_adapters
            or self._log.load != self._reported_load
        )

    @property
    def _must_report_draining(self) -> bool:
        return self._log.draining and self._draining_seq is None

    def _collect(self) -> list[worker_pb2.Report]:
        # A new router takes a worker for ready when it has its snapshot: adapters come before that.
        reports = self._adapter_reports() + self._snapshot_reports()
        reports += self._kv_reports() + self._digest_reports()
        if self._must_report_draining:
            reports.append(self._report(draining=True))
            self._draining_seq = self._seq
        load = worker_pb2.Load()
        load.CopyFrom(self._log.load)
        load.totals.CopyFrom(self._log.totals())
        load.accepted_request_ids.extend(self._accepted)
        self._accepted.clear()
        self._reported_load = self._log.load
        reports.append(self._report(load=load))
        return reports

    def _adapter_reports(self) -> list[worker_pb2.Report]:
        if self._log.adapters is self._reported_adapters:
            return []
        self._reported_adapters = self._log.adapters
        self._seq += 1
        return [worker_pb2.Report(seq=self._seq, adapters=self._log.adapters)]

    def _snapshot_reports(self) -> list[worker_pb2.Report]:
        taken = self._cursor.pop_snapshot()
        if taken is None:
            return []
        position, hashes = taken
        self._seq += 1
        size = MAX_REPORT_HASHES * HASH_BYTES
        parts = [hashes[i : i + size] for i in range(0, len(hashes), size)] or [b""]
        return [
            worker_pb2.Report(
                seq=self._seq,
                snapshot=worker_pb2.KvSnapshot(
                    hashes=part, more=index < len(parts) - 1, position=position
                ),
            )
            for index, part in enumerate(parts)
        ]

    def _kv_reports(self) -> list[worker_pb2.Report]:
        position, events = self._cursor.pop_events()
        reports: list[worker_pb2.Report] = []
        batch: list[worker_pb2.KvEvent] = []
        num_hashes = 0
        for event in events:
            size = num_hashes_of(event)
            if batch and num_hashes + size > MAX_REPORT_HASHES:
                reports.append(self._kv_report(position, batch))
                position += len(batch)
                batch, num_hashes = [], 0
            batch.append(event)
            num_hashes += size
        if batch:
            reports.append(self._kv_report(position, batch))
        return reports

    def _kv_report(self, position: int, events: list[worker_pb2.KvEvent]) -> worker_pb2.Report:
        return self._report(kv_events=worker_pb2.KvEvents(events=events, position=position))

    def _digest_reports(self) -> list[worker_pb2.Report]:
        """Now and then the digest of the prefix cache, when the router has got all events."""
        self._num_since_digest += 1
        digest = self._log.digest
        if self._num_since_digest < DIGEST_EVERY or digest is None:
            return []
        if not self._cursor.is_up_to_date:
            return []
        self._num_since_digest = 0
        num_hashes, xor = digest
        message = worker_pb2.KvDigest(
            num_hashes=num_hashes,
            xor=xor.to_bytes(8, "little"),
            position=self._log.kv_log.end,
        )
        return [self._report(digest=message)]

    def _report(
        self,
        *,
        register: worker_pb2.Register | None = None,
        load: worker_pb2.Load | None = None,
        kv_events: worker_pb2.KvEvents | None = None,
        digest: worker_pb2.KvDigest | None = None,
        draining: bool | None = None,
    ) -> worker_pb2.Report:
        self._seq += 1
        return worker_pb2.Report(
            seq=self._seq,
            register=register,
            load=load,
            kv_events=kv_events,
            digest=digest,
            draining=draining,
        )

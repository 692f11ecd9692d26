"""Usage records that the quota service did not acknowledge in time: kept on disk, replayed later.

Records are appended with group commit: those that arrive during one write and fsync go into the
next. A settled record is marked in its file, and a file whose records are all settled is removed,
so no work grows with the number of records that wait. Replaying is safe because settling is
idempotent by usage id. Many records are replayed at once; one that fails waits for the next round,
and holds up neither the others nor, if it is its tenant that fails, those of other tenants.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from operator import itemgetter

from baton.runtime import logs
from baton.wire.failures import BatonError
from baton.wire.v1 import quota_pb2
from services.gateway.clients.protocols import CallContext, QuotaClient, RunInThread
from services.gateway.tenants.outbox_files import (
    OutboxFiles,
    mark_line,
    record_line,
    waiting_records,
)

MAX_RECORDS = 200_000
RECORDS_PER_SEGMENT = 1000
REPLAY_EVERY_S = 1.0
REPLAY_TIMEOUT_S = 5.0
NUM_IN_FLIGHT = 32
# Failures in a row after which a round leaves out a tenant, and after which it ends.
MAX_FAILURES_OF_TENANT = 8
MAX_FAILURES = 64
_SKIPPED_PER_TURN = 256

_log = logs.get("outbox")


# A record and its segment.
Waiting = tuple[quota_pb2.UsageRecord, int]


class _Round:
    """The failures of one replay: tells which records are still worth a call."""

    def __init__(self) -> None:
        self._num_in_a_row = 0
        self._num_of_tenant: Counter[str] = Counter()

    @property
    def is_over(self) -> bool:
        return self._num_in_a_row >= MAX_FAILURES

    def leaves_out(self, tenant: str) -> bool:
        return self._num_of_tenant[tenant] >= MAX_FAILURES_OF_TENANT

    def failed(self, tenant: str) -> None:
        self._num_in_a_row += 1
        self._num_of_tenant[tenant] += 1

    def settled(self, tenant: str) -> None:
        self._num_in_a_row = 0
        self._num_of_tenant[tenant] = 0


class Segments:
    """The files, and which of them has how many records that wait. One caller writes at a time."""

    def __init__(self, files: OutboxFiles, in_thread: RunInThread) -> None:
        self._files = files
        self._in_thread = in_thread
        self._current = 0
        self._num_in_current = 0
        self._num_waiting: Counter[int] = Counter()
        self._marks: defaultdict[int, list[bytes]] = defaultdict(list)

    async def open(self) -> list[int]:
        """Begin a segment of this life; returns those of earlier lives."""
        earlier = await self._in_thread(self._files.segments)
        self._current = max(earlier, default=0) + 1
        return earlier

    async def load(self, segment: int) -> list[quota_pb2.UsageRecord]:
        """The records that an earlier life left in a segment. Without any it is removed."""
        records = await self._in_thread(lambda: waiting_records(self._files.read(segment)))
        self._num_waiting[segment] = len(records)
        if not records:
            await self._on_disk(partial(self._files.remove, segment))
        return records

    def place(self) -> int:
        """The segment of the next record."""
        if self._num_in_current >= RECORDS_PER_SEGMENT:
            # If all its records are settled, this lets `take_marks` remove it.
            self._marks[self._current].extend(())
            self._current += 1
            self._num_in_current = 0
        self._num_in_current += 1
        self._num_waiting[self._current] += 1
        return self._current

    def settled(self, segment: int, request_id: str) -> None:
        """Note that a record need not be replayed."""
        self._num_waiting[segment] -= 1
        self._marks[segment].append(mark_line(request_id))

    async def write(self, segment: int, lines: list[bytes]) -> None:
        await self._on_disk(partial(self._files.append, segment, lines, durable=True))

    def take_marks(self) -> list[Callable[[], None]]:
        """The work that writes down what is settled by now: marks, or the end of a whole segment.

        Marks are not durable: what a crash forgets is settled once more.
        """
        marks, self._marks = self._marks, defaultdict(list)
        work: list[Callable[[], None]] = []
        for segment, lines in marks.items():
            if segment != self._current and not self._num_waiting[segment]:
                del self._num_waiting[segment]
                work.append(partial(self._files.remove, segment))
            elif lines:
                work.append(partial(self._files.append, segment, lines, durable=False))
        return work

    async def write_marks(self, work: list[Callable[[], None]]) -> None:
        for write in work:
            await self._on_disk(write)

    async def _on_disk(self, work: Callable[[], None]) -> None:
        try:
            await self._in_thread(work)
        except OSError as error:
            _log.error("outbox_not_written", error=error.strerror or "")


class Outbox:
    """Records that wait for the quota service. `run` commits and replays until cancelled."""

    def __init__(self, files: OutboxFiles, quota: QuotaClient, in_thread: RunInThread) -> None:
        self._quota = quota
        self._segments = Segments(files, in_thread)
        self._waiting: dict[str, Waiting] = {}
        self._uncommitted: list[tuple[int, bytes, asyncio.Future[None]]] = []
        self._is_open = asyncio.Event()
        self._changed = asyncio.Event()
        self._file_use = asyncio.Lock()
        self._settling: set[asyncio.Task[None]] = set()
        self.num_dropped = 0

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    async def put(self, record: quota_pb2.UsageRecord) -> None:
        """Keep a record; returns when it is on disk, or when that failed (counted and logged)."""
        if len(self._waiting) >= MAX_RECORDS:
            self.num_dropped += 1
            _log.error("outbox_full", request_id=record.request_id)
            return
        await self._is_open.wait()
        assert record.request_id not in self._waiting, "usage ids are unique"
        segment = self._segments.place()
        self._waiting[record.request_id] = (record, segment)
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._uncommitted.append((segment, record_line(record), committed))
        self._changed.set()
        await committed

    def settle_beside(self, record: quota_pb2.UsageRecord) -> None:
        """Settle a record that bills nothing, while its client goes on. If a crash loses it, its
        lease ends by itself."""
        settling = asyncio.create_task(self._settle_or_keep(record))
        self._settling.add(settling)
        settling.add_done_callback(self._settling.discard)

    async def _settle_or_keep(self, record: quota_pb2.UsageRecord) -> None:
        try:
            await self._quota.settle(record, CallContext(record.request_id, REPLAY_TIMEOUT_S))
        except BatonError:
            await self.put(record)

    async def run(self) -> None:
        """Take in the records that an earlier life left, then commit and replay."""
        earlier = await self._segments.open()
        self._is_open.set()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._commit_loop())
            for segment in earlier:
                for record in await self._segments.load(segment):
                    self._waiting[record.request_id] = (record, segment)
            tasks.create_task(self._replay_loop())

    async def flush(self, timeout_s: float) -> None:
        """Settle the waiting records now, as far as quota answers in time: a gateway that leaves
        for good then leaves none behind."""
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*self._settling)
                await self._replay()
                await self._commit()
        except TimeoutError:
            _log.warning("outbox_not_empty", num_records=len(self._waiting))

    async def _commit_loop(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._commit()

    async def _commit(self) -> None:
        """Write the records and marks of now: each mark is of a record that is written before."""
        async with self._file_use:
            group, self._uncommitted = self._uncommitted, []
            marks = self._segments.take_marks()
            for segment, part in groupby(group, key=itemgetter(0)):
                records = list(part)
                await self._segments.write(segment, [line for _, line, _ in records])
                for _, _, committed in records:
                    if not committed.done():
                        committed.set_result(None)
            await self._segments.write_marks(marks)

    async def _replay_loop(self) -> None:
        while True:
            await self._replay()
            await asyncio.sleep(REPLAY_EVERY_S)

    async def _replay(self) -> None:
        """Settle the waiting records, each once, until quota seems to be away."""
        current = _Round()
        records = iter([record for record, _ in self._waiting.values()])
        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(NUM_IN_FLIGHT, len(self._waiting))):
                tasks.create_task(self._settle_each(records, current))

    async def _settle_each(self, records: Iterator[quota_pb2.UsageRecord], current: _Round) -> None:
        num_skipped = 0
        for record in records:
            if current.is_over:
                return
            if current.leaves_out(record.tenant):
                num_skipped += 1
                if not num_skipped % _SKIPPED_PER_TURN:
                    await asyncio.sleep(0)
            else:
                self._note(record.request_id, await self._is_done(record, current))

    async def _is_done(self, record: quota_pb2.UsageRecord, current: _Round) -> bool:
        """Returns whether the record is settled now, or refused for good."""
        try:
            await self._quota.settle(record, CallContext(record.request_id, REPLAY_TIMEOUT_S))
        except BatonError as error:
            if error.row.retryable or error.row.http_status >= 500:
                current.failed(record.tenant)
                return False
            self.num_dropped += 1
            _log.error("record_refused", request_id=record.request_id, reason=error.reason)
        current.settled(record.tenant)
        return True

    def _note(self, request_id: str, is_done: bool) -> None:
        waiting = self._waiting.pop(request_id, None)
        if waiting is None:
            return
        if is_done:
            self._segments.settled(waiting[1], request_id)
            self._changed.set()
        else:
            # The next round begins with others.
            self._waiting[request_id] = waiting

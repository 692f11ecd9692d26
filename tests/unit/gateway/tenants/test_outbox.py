"""Usage records that wait on disk."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from baton.testing.virtual_clock import run_virtual
from baton.wire.failures import (
    BatonError,
    DeadlineExceeded,
    InternalFailure,
    InvalidRequest,
    LimitExceeded,
    Unavailable,
)
from baton.wire.v1 import quota_pb2
from services.gateway.clients.protocols import CallContext, RunInThread
from services.gateway.tenants import outbox as outbox_module
from services.gateway.tenants.outbox import Outbox
from services.gateway.tenants.outbox_files import (
    DiskFiles,
    folder_of,
    mark_line,
    record_line,
    take_over,
    waiting_records,
)
from tests.unit.gateway.fakes import FakeQuota, MemoryFiles, inline


def record(request_id: str) -> quota_pb2.UsageRecord:
    return quota_pb2.UsageRecord(request_id=request_id, num_output_tokens=3)


def with_outbox(
    file: Any, quota: FakeQuota, scenario: Any, in_thread: RunInThread = inline
) -> None:
    async def main() -> None:
        outbox = Outbox(file, quota, in_thread)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(outbox.run())
            await scenario(outbox)
            running.cancel()

    run_virtual(main())


def settled_ids(quota: FakeQuota) -> list[str]:
    return [settled.request_id for settled in quota.settled]


def test_records_that_queue_up_share_one_write() -> None:
    writes: list[int] = []

    class Counting(MemoryFiles):
        def append(self, segment: int, lines: list[bytes], *, durable: bool) -> None:
            writes.append(len(lines))
            super().append(segment, lines, durable=durable)

    quota = FakeQuota()
    quota.settle_failure = Unavailable("down")

    async def scenario(outbox: Outbox) -> None:
        await asyncio.sleep(0.01)
        await asyncio.gather(*(outbox.put(record(f"r{i}")) for i in range(5)))
        assert writes == [5]

    with_outbox(Counting(), quota, scenario)


def test_records_of_an_earlier_life_are_settled_and_the_file_emptied() -> None:
    file, quota = MemoryFiles(), FakeQuota()
    quota.settle_failure = Unavailable("down")

    async def first_life(outbox: Outbox) -> None:
        await outbox.put(record("r1"))
        await outbox.put(record("r2"))

    async def second_life(outbox: Outbox) -> None:
        await asyncio.sleep(1)
        assert settled_ids(quota) == ["r1", "r2"]
        assert file.waiting == []
        assert outbox.num_waiting == 0

    with_outbox(file, quota, first_life)
    assert len(file.waiting) == 2
    quota.settle_failure = None
    with_outbox(file, quota, second_life)


def test_a_torn_last_line_is_skipped() -> None:
    file, quota = MemoryFiles(), FakeQuota()

    async def scenario(outbox: Outbox) -> None:
        await asyncio.sleep(1)
        assert settled_ids(quota) == ["r1"]

    quota.settle_failure = Unavailable("down")

    async def first_life(outbox: Outbox) -> None:
        await outbox.put(record("r1"))

    with_outbox(file, quota, first_life)
    [lines] = file.lines.values()
    lines += [lines[0][:7], b"\xff\xfe", b""]
    quota.settle_failure = None
    with_outbox(file, quota, scenario)


def test_a_record_that_can_never_be_settled_is_dropped_and_counted() -> None:
    quota = FakeQuota()
    quota.settle_failure = InvalidRequest("no such tenant")

    async def scenario(outbox: Outbox) -> None:
        await outbox.put(record("r1"))
        await asyncio.sleep(3)
        assert (outbox.num_waiting, outbox.num_dropped) == (0, 1)

    with_outbox(MemoryFiles(), quota, scenario)


@pytest.mark.parametrize(
    "failure", [DeadlineExceeded("late"), InternalFailure("a bug"), LimitExceeded("too many")]
)
def test_a_record_whose_settling_may_work_another_time_is_kept(failure: BatonError) -> None:
    file, quota = MemoryFiles(), FakeQuota()
    quota.settle_failure = failure

    async def scenario(outbox: Outbox) -> None:
        await outbox.put(record("r1"))
        await asyncio.sleep(3)
        assert (outbox.num_waiting, outbox.num_dropped) == (1, 0)
        assert len(file.waiting) == 1
        quota.settle_failure = None
        await asyncio.sleep(3)
        assert settled_ids(quota) == ["r1"]

    with_outbox(file, quota, scenario)


def test_a_record_that_comes_while_others_are_marked_is_on_disk_afterwards() -> None:
    file, quota = MemoryFiles(), FakeQuota()
    marks = asyncio.Event()

    async def slow_to_mark(work: Callable[[], Any], /) -> Any:
        if isinstance(work, partial) and not work.keywords["durable"]:
            marks.set()
            await asyncio.sleep(1)
        return work()

    async def first_life(outbox: Outbox) -> None:
        await outbox.put(record("r1"))
        await marks.wait()
        quota.settle_failure = Unavailable("down")
        await outbox.put(record("r2"))
        await asyncio.sleep(1)
        assert file.waiting == ["r2"]

    async def second_life(outbox: Outbox) -> None:
        await asyncio.sleep(1)
        assert settled_ids(quota) == ["r1", "r2"]

    with_outbox(file, quota, first_life, slow_to_mark)
    quota.settle_failure = None
    with_outbox(file, quota, second_life)


def test_a_full_outbox_drops_and_counts_what_comes_and_keeps_what_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file, quota = MemoryFiles(), FakeQuota()
    quota.settle_failure = Unavailable("down")
    monkeypatch.setattr(outbox_module, "MAX_RECORDS", 3)

    async def scenario(outbox: Outbox) -> None:
        for number in range(3):
            await outbox.put(record(f"r{number}"))
        assert (outbox.num_waiting, outbox.num_dropped) == (3, 0)
        await outbox.put(record("one too many"))
        assert (outbox.num_waiting, outbox.num_dropped) == (3, 1)
        assert len(file.waiting) == 3
        quota.settle_failure = None
        await asyncio.sleep(3)
        assert sorted(settled_ids(quota)) == ["r0", "r1", "r2"]
        assert (outbox.num_waiting, outbox.num_dropped) == (0, 1)

    with_outbox(file, quota, scenario)


def test_records_that_one_tenants_store_refuses_hold_up_no_others() -> None:
    class Refusing(FakeQuota):
        async def settle(self, record: quota_pb2.UsageRecord, context: CallContext) -> None:
            if record.tenant == "corrupt":
                raise Unavailable("a value of the wrong type", reason="quota_unavailable")
            await super().settle(record, context)

    quota = Refusing()

    async def scenario(outbox: Outbox) -> None:
        first = [quota_pb2.UsageRecord(request_id=f"c{i}", tenant="corrupt") for i in range(2)]
        await asyncio.gather(*(outbox.put(each) for each in (*first, record("r1"), record("r2"))))
        await asyncio.sleep(4)
        assert settled_ids(quota) == ["r1", "r2"]
        assert outbox.num_waiting == 2

    with_outbox(MemoryFiles(), quota, scenario)


def test_a_full_disk_does_not_stop_the_request() -> None:
    class Full(MemoryFiles):
        def append(self, segment: int, lines: list[bytes], *, durable: bool) -> None:
            raise OSError(28, "No space left on device")

    quota = FakeQuota()
    quota.settle_failure = Unavailable("down")

    async def scenario(outbox: Outbox) -> None:
        await outbox.put(record("r1"))
        quota.settle_failure = None
        await asyncio.sleep(3)
        assert settled_ids(quota) == ["r1"]

    with_outbox(Full(), quota, scenario)


def test_files_on_disk_are_appended_to_and_removed(tmp_path: Path) -> None:
    files = DiskFiles(tmp_path / "deep" / "outbox")
    assert files.segments() == []
    files.append(1, [b"a", b"b"], durable=True)
    files.append(1, [b"c"], durable=False)
    files.append(12, [b"d"], durable=True)
    assert [line for line in files.read(1) if line] == [b"a", b"b", b"c"]
    assert DiskFiles(tmp_path / "deep" / "outbox").segments() == [1, 12]
    [path] = (tmp_path / "deep" / "outbox").glob("*1.txt")
    assert path.stat().st_mode & 0o777 == 0o600
    files.remove(1)
    files.remove(1)
    assert files.segments() == [12]


def test_what_is_written_after_a_torn_line_is_read(tmp_path: Path) -> None:
    files = DiskFiles(tmp_path)
    files.append(1, [record_line(record("r1")), record_line(record("r2"))[:-1]], durable=True)
    [path] = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    files.append(1, [record_line(record("r3")), mark_line("r1")], durable=True)
    assert [each.request_id for each in waiting_records(files.read(1))] == ["r3"]


def test_a_quota_that_takes_30_ms_for_each_record_keeps_up_with_100_a_second() -> None:
    quota = FakeQuota()
    quota.settle_delay_s = 0.03

    async def scenario(outbox: Outbox) -> None:
        async with asyncio.TaskGroup() as requests:
            for number in range(6000):
                requests.create_task(outbox.put(record(f"r{number}")))
                await asyncio.sleep(0.01)
                assert outbox.num_waiting <= 150
        await asyncio.sleep(2)
        assert len(set(settled_ids(quota))) == len(quota.settled) == 6000
        assert (outbox.num_waiting, outbox.num_dropped) == (0, 0)

    with_outbox(MemoryFiles(), quota, scenario)


def test_failures_now_and_then_do_not_hold_up_the_others() -> None:
    class Flaky(FakeQuota):
        num_calls = 0

        async def settle(self, record: quota_pb2.UsageRecord, context: CallContext) -> None:
            self.num_calls += 1
            if not self.num_calls % 50:
                raise Unavailable("now and then")
            await super().settle(record, context)

    quota = Flaky()

    async def scenario(outbox: Outbox) -> None:
        await asyncio.gather(*(outbox.put(record(f"r{i}")) for i in range(5000)))
        await asyncio.sleep(4)
        assert (len(quota.settled), outbox.num_waiting) == (5000, 0)

    with_outbox(MemoryFiles(), quota, scenario)


def test_a_quota_that_is_away_is_asked_a_bounded_number_of_times_in_each_round() -> None:
    class Away(FakeQuota):
        num_calls = 0

        async def settle(self, record: quota_pb2.UsageRecord, context: CallContext) -> None:
            self.num_calls += 1
            raise Unavailable("down")

    quota = Away()

    async def scenario(outbox: Outbox) -> None:
        records = [
            quota_pb2.UsageRecord(request_id=f"r{i}", tenant=f"t{i % 500}") for i in range(1000)
        ]
        await asyncio.gather(*(outbox.put(each) for each in records))
        before = quota.num_calls
        await asyncio.sleep(outbox_module.REPLAY_EVERY_S)
        assert quota.num_calls - before <= outbox_module.MAX_FAILURES + outbox_module.NUM_IN_FLIGHT

    with_outbox(MemoryFiles(), quota, scenario)


def test_work_on_files_does_not_grow_with_the_records_that_wait() -> None:
    written: list[int] = []

    class Counting(MemoryFiles):
        def append(self, segment: int, lines: list[bytes], *, durable: bool) -> None:
            written.append(len(lines))
            super().append(segment, lines, durable=durable)

    file, quota = Counting(), FakeQuota()
    quota.settle_failure = Unavailable("down")
    num_stuck, num_more = 3500, 500

    async def scenario(outbox: Outbox) -> None:
        stuck = [quota_pb2.UsageRecord(request_id=f"c{i}", tenant="c") for i in range(num_stuck)]
        await asyncio.gather(*(outbox.put(each) for each in stuck))
        assert sum(written) == num_stuck
        written.clear()
        quota.settle_failure = None
        await asyncio.gather(*(outbox.put(record(f"r{i}")) for i in range(num_more)))
        await asyncio.sleep(2)
        assert outbox.num_waiting == 0
        # Each record once, and at most a mark for each.
        assert sum(written) <= num_more + num_stuck + num_more
        assert max(written) <= outbox_module.RECORDS_PER_SEGMENT
        assert len(file.lines) == 1

    with_outbox(file, quota, scenario)


def test_the_end_of_a_gateway_leaves_no_record_that_quota_takes() -> None:
    file, quota = MemoryFiles(), FakeQuota()
    quota.settle_failure = Unavailable("down")

    async def scenario(outbox: Outbox) -> None:
        await asyncio.gather(*(outbox.put(record(f"r{i}")) for i in range(100)))
        quota.settle_failure = None
        await outbox.flush(timeout_s=0.5)
        assert (outbox.num_waiting, file.waiting) == (0, [])

    with_outbox(file, quota, scenario)


def test_a_record_that_could_not_be_settled_beside_waits_on_disk() -> None:
    file, quota = MemoryFiles(), FakeQuota()
    quota.settle_failure = Unavailable("down")

    async def scenario(outbox: Outbox) -> None:
        outbox.settle_beside(record("r"))
        await asyncio.sleep(0.01)
        assert file.waiting == ["r"]
        quota.settle_failure = None
        await asyncio.sleep(1.0)
        assert settled_ids(quota) == ["r"]

    with_outbox(file, quota, scenario)


def test_segments_of_processes_that_there_are_no_more_go_to_the_first(tmp_path: Path) -> None:
    def lines(folder: Path) -> list[bytes]:
        files = DiskFiles(folder)
        return [line for segment in files.segments() for line in files.read(segment) if line]

    DiskFiles(tmp_path).append(3, [b"alone"], durable=False)
    take_over(tmp_path, 2)
    first, second, third = (folder_of(tmp_path, number, 3) for number in (1, 2, 3))
    assert lines(first) == [b"alone"]
    DiskFiles(second).append(1, [b"second"], durable=False)
    DiskFiles(third).append(1, [b"third"], durable=False)
    take_over(tmp_path, 2)
    assert lines(first) == [b"alone", b"third"]
    assert lines(second) == [b"second"]
    take_over(tmp_path, 1)
    assert sorted(lines(tmp_path)) == [b"alone", b"second", b"third"]
    take_over(tmp_path, 1)
    assert len(lines(tmp_path)) == 3

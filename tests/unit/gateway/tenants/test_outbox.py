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
from services.gateway.tenants.outbox import DiskFile, Outbox
from tests.unit.gateway.fakes import FakeQuota, MemoryFile, inline


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

    class Counting(MemoryFile):
        def append(self, lines: list[bytes]) -> None:
            writes.append(len(lines))
            super().append(lines)

    quota = FakeQuota()
    quota.settle_failure = Unavailable("down")

    async def scenario(outbox: Outbox) -> None:
        await asyncio.sleep(0.01)
        await asyncio.gather(*(outbox.put(record(f"r{i}")) for i in range(5)))
        assert writes == [5]

    with_outbox(Counting(), quota, scenario)


def test_records_of_an_earlier_life_are_settled_and_the_file_emptied() -> None:
    file, quota = MemoryFile(), FakeQuota()
    quota.settle_failure = Unavailable("down")

    async def first_life(outbox: Outbox) -> None:
        await outbox.put(record("r1"))
        await outbox.put(record("r2"))

    async def second_life(outbox: Outbox) -> None:
        await asyncio.sleep(1)
        assert settled_ids(quota) == ["r1", "r2"]
        assert file.lines == []
        assert outbox.num_waiting == 0

    with_outbox(file, quota, first_life)
    assert len(file.lines) == 2
    quota.settle_failure = None
    with_outbox(file, quota, second_life)


def test_a_torn_last_line_is_skipped() -> None:
    file, quota = MemoryFile(), FakeQuota()

    async def scenario(outbox: Outbox) -> None:
        await asyncio.sleep(1)
        assert settled_ids(quota) == ["r1"]

    quota.settle_failure = Unavailable("down")

    async def first_life(outbox: Outbox) -> None:
        await outbox.put(record("r1"))

    with_outbox(file, quota, first_life)
    file.lines += [file.lines[0][:7], b"\xff\xfe", b""]
    quota.settle_failure = None
    with_outbox(file, quota, scenario)


def test_a_record_that_can_never_be_settled_is_dropped_and_counted() -> None:
    quota = FakeQuota()
    quota.settle_failure = InvalidRequest("no such tenant")

    async def scenario(outbox: Outbox) -> None:
        await outbox.put(record("r1"))
        await asyncio.sleep(3)
        assert (outbox.num_waiting, outbox.num_dropped) == (0, 1)

    with_outbox(MemoryFile(), quota, scenario)


@pytest.mark.parametrize(
    "failure", [DeadlineExceeded("late"), InternalFailure("a bug"), LimitExceeded("too many")]
)
def test_a_record_whose_settling_may_work_another_time_is_kept(failure: BatonError) -> None:
    file, quota = MemoryFile(), FakeQuota()
    quota.settle_failure = failure

    async def scenario(outbox: Outbox) -> None:
        await outbox.put(record("r1"))
        await asyncio.sleep(3)
        assert (outbox.num_waiting, outbox.num_dropped) == (1, 0)
        assert len(file.lines) == 1
        quota.settle_failure = None
        await asyncio.sleep(3)
        assert settled_ids(quota) == ["r1"]

    with_outbox(file, quota, scenario)


def test_a_record_that_comes_while_the_file_is_compacted_is_on_disk_afterwards() -> None:
    file, quota = MemoryFile(), FakeQuota()
    compacts = asyncio.Event()

    async def slow_to_compact(work: Callable[[], Any], /) -> Any:
        if isinstance(work, partial) and work.func == file.replace:
            compacts.set()
            await asyncio.sleep(1)
        return work()

    async def first_life(outbox: Outbox) -> None:
        await outbox.put(record("r1"))
        await compacts.wait()
        quota.settle_failure = Unavailable("down")
        await outbox.put(record("r2"))
        await asyncio.sleep(1)

    async def second_life(outbox: Outbox) -> None:
        await asyncio.sleep(1)
        assert settled_ids(quota) == ["r1", "r2"]

    with_outbox(file, quota, first_life, slow_to_compact)
    quota.settle_failure = None
    with_outbox(file, quota, second_life)


def test_a_full_outbox_drops_and_counts_what_comes_and_keeps_what_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file, quota = MemoryFile(), FakeQuota()
    quota.settle_failure = Unavailable("down")
    monkeypatch.setattr(outbox_module, "MAX_RECORDS", 3)

    async def scenario(outbox: Outbox) -> None:
        for number in range(3):
            await outbox.put(record(f"r{number}"))
        assert (outbox.num_waiting, outbox.num_dropped) == (3, 0)
        await outbox.put(record("one too many"))
        assert (outbox.num_waiting, outbox.num_dropped) == (3, 1)
        assert len(file.lines) == 3
        quota.settle_failure = None
        await asyncio.sleep(3)
        assert settled_ids(quota) == ["r0", "r1", "r2"]
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

    with_outbox(MemoryFile(), quota, scenario)


def test_a_full_disk_does_not_stop_the_request() -> None:
    class Full(MemoryFile):
        def append(self, lines: list[bytes]) -> None:
            raise OSError(28, "No space left on device")

    quota = FakeQuota()
    quota.settle_failure = Unavailable("down")

    async def scenario(outbox: Outbox) -> None:
        await outbox.put(record("r1"))
        quota.settle_failure = None
        await asyncio.sleep(3)
        assert settled_ids(quota) == ["r1"]

    with_outbox(Full(), quota, scenario)


def test_the_disk_file_appends_and_replaces(tmp_path: Path) -> None:
    file = DiskFile(tmp_path / "deep" / "outbox")
    assert file.read() == []
    file.append([b"a", b"b"])
    file.append([b"c"])
    assert file.read() == [b"a", b"b", b"c"]
    file.replace([b"c"])
    assert DiskFile(tmp_path / "deep" / "outbox").read() == [b"c"]
    assert (tmp_path / "deep" / "outbox").stat().st_mode & 0o777 == 0o600

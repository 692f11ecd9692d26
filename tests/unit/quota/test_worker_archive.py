"""Lines of workers: one a minute for each, whatever gateways tell."""

from pathlib import Path
from typing import Any

from baton.testing.virtual_clock import VirtualClock
from baton.wire import worker_log
from baton.wire.v1 import quota_pb2, router_pb2
from baton.wire.worker_log import WorkerLine
from services.quota.worker_archive import WorkerArchive


def worker(name: str, uptime_s: float, busy_s: float = 0.0, boot_epoch: int = 1) -> Any:
    return quota_pb2.WorkerTotals(
        worker_id=name,
        model="m",
        role=router_pb2.WORKER_ROLE_DECODE,
        totals=router_pb2.EngineTotals(
            boot_epoch=boot_epoch, uptime_us=int(uptime_s * 1e6), busy_us=int(busy_s * 1e6)
        ),
    )


async def run_inline(work: Any) -> None:
    work()


def archive_in(folder: Path, clock: VirtualClock) -> WorkerArchive:
    return WorkerArchive(folder, clock.unix, run_blocking=run_inline)


def lines(folder: Path) -> list[WorkerLine]:
    return [line for path in worker_log.files(folder) for line in worker_log.read_file(path)]


async def test_a_worker_of_which_many_gateways_tell_has_one_line_a_minute(tmp_path: Path) -> None:
    clock = VirtualClock()
    archive = archive_in(tmp_path, clock)
    for second in range(0, 180, 5):
        archive.note([worker("d0", second, second / 2), worker("d1", second)])
        clock.advance(5)
        await archive.write()
    written = lines(tmp_path)
    assert [line.uptime_us for line in written if line.worker_id == "d0"] == [0, 55e6, 110e6, 165e6]
    assert len(written) == 8
    assert written[2].busy_us == 27_500_000
    assert (written[2].role, written[2].model) == ("decode", "m")


async def test_a_worker_that_starts_again_is_written_down_at_once(tmp_path: Path) -> None:
    archive = archive_in(tmp_path, VirtualClock())
    archive.note([worker("d0", 100)])
    archive.note([worker("d0", 1, boot_epoch=2)])
    await archive.write()
    assert [line.boot_epoch for line in lines(tmp_path)] == [1, 2]


async def test_the_last_figures_of_a_worker_that_ended_are_written_in_the_end(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()
    archive = archive_in(tmp_path, clock)
    for uptime_s in (100, 130, 120):
        archive.note([worker("d0", uptime_s)])
        await archive.write()
    assert [line.uptime_us for line in lines(tmp_path)] == [100e6]
    clock.advance(60)
    for _ in range(2):
        await archive.write()
    assert [line.uptime_us for line in lines(tmp_path)] == [100e6, 130e6]
    archive.note([worker("d0", 150)])
    await archive.write_all()
    assert [line.uptime_us for line in lines(tmp_path)] == [100e6, 130e6, 150e6]


async def test_figures_that_contradict_each_other_are_clamped(tmp_path: Path) -> None:
    archive = archive_in(tmp_path, VirtualClock())
    archive.note([worker("d0", 10, 20), worker("", 10), worker("x" * 300, 10)])
    await archive.write()
    [line] = lines(tmp_path)
    assert line.busy_us == line.uptime_us == 10_000_000


async def test_a_disk_that_fails_costs_a_line_and_nothing_else(tmp_path: Path) -> None:
    clock = VirtualClock()
    (tmp_path / "file").write_bytes(b"")
    archive = archive_in(tmp_path / "file", clock)
    archive.note([worker("d0", 10)])
    await archive.write()
    (tmp_path / "file").unlink()
    clock.advance(60)
    archive.note([worker("d0", 70)])
    await archive.write()
    assert [line.uptime_us for line in lines(tmp_path / "file")] == [70_000_000]


def test_a_torn_line_is_left_out(tmp_path: Path) -> None:
    line = WorkerLine("d0", 1, "decode", "m", 1_800_000_000_000, 3, 2, 1)
    path = tmp_path / line.file_name
    path.write_bytes(worker_log.encode(line)[:20] + b"\n" + worker_log.encode(line))
    assert lines(tmp_path) == [line]

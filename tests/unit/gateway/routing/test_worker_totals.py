"""What quota is told of the workers: the newest figures of each life, and of ended lives once."""

from typing import Any

from baton.wire.v1 import router_pb2
from services.gateway.routing.worker_totals import BEATS_PER_TOTALS, WorkersTotals


def view(**workers: tuple[int, int]) -> Any:
    """By worker: its boot epoch and its uptime."""
    states = [
        router_pb2.WorkerState(
            worker_id=name,
            role=router_pb2.WORKER_ROLE_PREFILL,
            totals=router_pb2.EngineTotals(boot_epoch=boot_epoch, uptime_us=uptime_us),
        )
        for name, (boot_epoch, uptime_us) in workers.items()
    ]
    return [router_pb2.ModelState(name="m", workers=states)]


def told(totals: WorkersTotals) -> list[tuple[str, int, int]]:
    """What the next beat tells."""
    return [
        (each.worker_id, each.totals.boot_epoch, each.totals.uptime_us) for each in totals.take()
    ]


def told_of_all(totals: WorkersTotals) -> list[tuple[str, int, int]]:
    totals.tell_all()
    return told(totals)


def test_the_newest_figures_are_told() -> None:
    totals = WorkersTotals()
    totals.update(view(p0=(1, 100), p1=(1, 50)))
    totals.update(view(p0=(1, 200), p1=(1, 150)))
    totals.tell_all()
    [first, second] = totals.take()
    assert (first.worker_id, first.model, first.role) == ("p0", "m", router_pb2.WORKER_ROLE_PREFILL)
    assert (first.totals.uptime_us, second.totals.uptime_us) == (200, 150)


def test_all_workers_are_told_once_a_minute() -> None:
    totals = WorkersTotals()
    totals.update(view(p0=(1, 100)))
    beats = [told(totals) for _ in range(2 * BEATS_PER_TOTALS)]
    assert beats == 2 * [*((BEATS_PER_TOTALS - 1) * [[]]), [("p0", 1, 100)]]


def test_a_life_that_ended_is_told_with_the_next_beat_and_only_once() -> None:
    totals = WorkersTotals()
    totals.update(view(p0=(1, 100), p1=(1, 50)))
    totals.update(view(p0=(2, 3)))
    assert told(totals) == [("p0", 1, 100), ("p1", 1, 50)]
    assert told_of_all(totals) == [("p0", 2, 3)]


def test_a_worker_that_says_nothing_of_its_time_is_left_out() -> None:
    totals = WorkersTotals()
    totals.update(view(old=(0, 0)))
    assert told_of_all(totals) == []

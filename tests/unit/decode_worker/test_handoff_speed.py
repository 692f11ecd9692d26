"""What a decode worker tells routers of the speed of its handoffs."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from baton.system.clock import SystemClock
from baton.wire.limits import MAX_ZONES
from baton.wire.v1 import worker_pb2
from baton.worker.reports import ReportLog
from services.decode_worker.prefill_links import MIN_RATE_BYTES, PrefillLinks


@pytest.fixture
def reports() -> ReportLog:
    return ReportLog(worker_pb2.Register(), lambda: None, SystemClock())


@pytest.fixture
def links(reports: ReportLog) -> PrefillLinks:
    return PrefillLinks(cast(Any, SimpleNamespace(reports=reports)), cast(Any, None))


def test_large_handoffs_make_the_rate_and_small_ones_the_least_time(links, reports) -> None:
    links.observe_rate(100 * MIN_RATE_BYTES, 0.1)
    for _ in range(50):
        links.observe_rate(1000, 0.005)
    assert reports.load.handoff_bytes_per_s == pytest.approx(1000 * MIN_RATE_BYTES)
    assert reports.load.handoff_s == pytest.approx(0.005)


def test_handoffs_from_other_zones_are_told_by_zone(links, reports) -> None:
    reports.register.zone = "a"
    links.observe_rate(100 * MIN_RATE_BYTES, 0.1, "a")
    links.observe_rate(100 * MIN_RATE_BYTES, 1.0, "b")
    for _ in range(3):
        links.observe_rate(1000, 0.02, "c")
    assert reports.load.handoff_bytes_per_s == pytest.approx(1000 * MIN_RATE_BYTES)
    assert reports.load.handoff_s == 0
    far = {each.zone: (each.bytes_per_s, each.least_s) for each in reports.load.far_handoffs}
    assert far == {"b": (pytest.approx(100 * MIN_RATE_BYTES), 0.0), "c": (0.0, 0.02)}


def test_a_worker_tells_of_so_many_zones_at_most(links, reports) -> None:
    reports.register.zone = "a"
    for number in range(MAX_ZONES + 3):
        links.observe_rate(MIN_RATE_BYTES, 1.0, f"z{number}")
    assert len(reports.load.far_handoffs) == MAX_ZONES


@pytest.mark.parametrize("when", range(6))
def test_one_slow_small_handoff_tells_nothing(links, reports, when: int) -> None:
    """As the first over a link, or beside a long step of the core. While prompts stay for its sake
    there are no others."""
    for number in range(6):
        links.observe_rate(1000, 1.0 if number == when else 0.005)
        assert reports.load.handoff_s == pytest.approx(0.005 if number >= 2 else 0)
    assert reports.load.handoff_bytes_per_s == 0


def test_small_handoffs_that_stay_slow_are_told(links, reports) -> None:
    for number in range(8):
        links.observe_rate(1000, 0.005 if number < 5 else 1.0)
    assert reports.load.handoff_s == 1.0

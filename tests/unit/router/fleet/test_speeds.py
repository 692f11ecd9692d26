"""Estimated speeds: a worker's own, those of its pool, and priors."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from services.router.fleet.reported import ReportedLoad
from services.router.fleet.speeds import Measured, MeasuredAt, Speeds, means_of
from services.router.settings import Settings

SETTINGS = Settings()
NOTHING = ReportedLoad(0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0)
NOW = 1000.0
LONG_AGO = NOW - SETTINGS.speed_trust_s - 1


@pytest.fixture
def worker() -> Callable[..., Measured]:
    def build(
        prefill: float = 0.0, step_s: float = 0.0, handoff: float = 0.0, at: float = NOW
    ) -> Measured:
        load = replace(
            NOTHING,
            prefill_tokens_per_s=prefill,
            decode_step_s=step_s,
            handoff_bytes_per_s=handoff,
        )
        return Measured(load, MeasuredAt(at, at, at, at))

    return build


def test_a_small_handoff_costs_nothing_until_somebody_measured_one(worker) -> None:
    new = worker()
    assert speeds(new).of(new).handoff_s == 0
    measured = worker(at=NOW)
    measured = measured._replace(load=replace(measured.load, handoff_s=0.01))
    assert speeds(new, measured).of(new).handoff_s == 0.01


def test_the_wait_for_a_step_is_the_workers_own_else_that_of_its_pool(worker) -> None:
    measured = worker(at=NOW)
    measured = measured._replace(load=replace(measured.load, step_wait_s=0.04))
    pool = speeds(measured, new := worker())
    assert pool.of(measured).step_wait_s == pool.of(new).step_wait_s == 0.04
    old = measured._replace(at=MeasuredAt())
    assert speeds(old).of(old).step_wait_s == 0


def speeds(*pool: Measured, others: tuple[Measured, ...] = ()) -> Speeds:
    return Speeds(means_of(pool, others, SETTINGS, NOW), SETTINGS, NOW)


def test_what_a_worker_measured_itself_counts_first(worker) -> None:
    mine = worker(500.0, 0.03, 1e8)
    speed = speeds(mine, worker(9000.0, 0.01, 1e9)).of(mine)
    assert speed.prefill_tokens_per_s == 500
    assert speed.decode_step_s == 0.03
    assert speed.handoff_bytes_per_s == 1e8


def test_a_worker_that_measured_nothing_is_taken_for_one_of_its_pool(worker) -> None:
    new = worker()
    pool = speeds(new, worker(1000.0, 0.02, 1e9), worker(3000.0, 0.04, 3e9))
    speed = pool.of(new)
    assert speed.prefill_tokens_per_s == 2000
    assert speed.decode_step_s == pytest.approx(0.03)
    assert speed.handoff_bytes_per_s == 2e9


def test_decode_workers_that_never_prefilled_are_taken_to_be_as_fast_as_prefill_workers(
    worker,
) -> None:
    new = worker(step_s=0.02)
    assert speeds(new, others=(worker(40_000.0),)).of(new).prefill_tokens_per_s == 40_000


def test_when_no_worker_has_measured_anything_the_priors_count(worker) -> None:
    speed = speeds(worker()).of(worker())
    assert speed.prefill_tokens_per_s == SETTINGS.prior_prefill_tokens_per_s
    assert speed.decode_step_s == SETTINGS.prior_decode_step_s
    assert speed.handoff_bytes_per_s == SETTINGS.prior_handoff_bytes_per_s


def test_an_old_rate_gives_way_to_what_others_measured_lately(worker) -> None:
    once_slow = worker(50.0, 0.02, 1e6, at=LONG_AGO)
    prefill = worker(8000.0)
    assert speeds(once_slow, others=(prefill,)).of(once_slow).prefill_tokens_per_s == 8000
    other = worker(handoff=2e9)
    assert speeds(once_slow, other).of(once_slow).handoff_bytes_per_s == 2e9


def test_old_rates_are_better_than_nothing_but_no_reason_never_to_try_again(worker) -> None:
    fast, slow = worker(9000.0, 0.02, 2e9, at=LONG_AGO), worker(50.0, 0.02, 1e6, at=LONG_AGO)
    pool = speeds(fast, slow)
    assert pool.of(fast).prefill_tokens_per_s == 9000
    assert pool.of(fast).handoff_bytes_per_s == 2e9
    assert pool.of(slow).prefill_tokens_per_s == SETTINGS.prior_prefill_tokens_per_s
    assert pool.of(slow).handoff_bytes_per_s == SETTINGS.prior_handoff_bytes_per_s


def test_a_rate_is_as_old_as_its_last_change() -> None:
    at = MeasuredAt()
    first = replace(NOTHING, prefill_tokens_per_s=100.0)
    at.note(NOTHING, first, 5.0)
    at.note(first, first, 6.0)
    assert (at.prefill, at.handoff) == (5.0, 0.0)
    at.note(first, replace(first, handoff_bytes_per_s=1e9), 7.0)
    assert (at.prefill, at.handoff) == (5.0, 7.0)

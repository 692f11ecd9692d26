"""Second attempts are bounded over the whole fleet, by the router that sees them all."""

import pytest

from baton.testing.virtual_clock import run_virtual
from baton.wire.failures import Overloaded
from services.router.queue.retry_budget import MAX_RETRIES, MIN_PER_S, SHARE, RetryBudget


@pytest.fixture
def budget(clock) -> RetryBudget:
    return RetryBudget(clock)


def spend(budget: RetryBudget, num: float) -> None:
    for _ in range(int(num)):
        budget.spend(has_begun=False)


def test_the_death_of_a_large_worker_fails_no_request(budget) -> None:
    spend(budget, MAX_RETRIES)
    with pytest.raises(Overloaded) as caught:
        spend(budget, 1)
    assert caught.value.retry_after_s > 0


def test_first_picks_earn_a_share_of_second_attempts(budget) -> None:
    spend(budget, MAX_RETRIES)
    for _ in range(100):
        budget.num_first += 1
    spend(budget, 100 * SHARE - 1)
    with pytest.raises(Overloaded):
        spend(budget, 2)


def test_a_few_second_attempts_are_made_without_any_first_one(budget, clock) -> None:
    spend(budget, MAX_RETRIES)
    clock.advance(10.0)
    spend(budget, 10 * MIN_PER_S)
    with pytest.raises(Overloaded):
        spend(budget, 1)


def test_a_stream_that_has_begun_is_never_refused_and_comes_before_others(budget) -> None:
    for _ in range(int(2 * MAX_RETRIES)):
        budget.spend(has_begun=True)
    with pytest.raises(Overloaded):
        spend(budget, 1)


def test_a_router_refuses_the_storm_and_goes_on_with_first_attempts(router, clock) -> None:
    async def scenario() -> None:
        fleet = router(stale_after_s=3600)
        decode, other = fleet.decode("d0"), fleet.decode("d1")
        for worker in (decode, other):
            worker.register.max_num_seqs = 10_000
            worker.register.num_blocks = 1_000_000
            worker.start(boot_epoch=2)
            worker.load(num_blocks_total=1_000_000, num_blocks_free=1_000_000)
        num_refused = 0
        failed = {"exclude_worker_ids": ["d0"], "has_failed": True}
        for number in range(400):
            await fleet.pick(f"new-{number}")
            try:
                await fleet.pick(f"old-{number}", **failed)
            except Overloaded:
                num_refused += 1
        assert num_refused == pytest.approx(400 * (1 - SHARE) - MAX_RETRIES, abs=3)
        await fleet.pick("begun", has_begun=True, **failed)

    run_virtual(scenario(), clock)

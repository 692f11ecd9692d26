"""A rate follows the work, not the number of measurements."""

import pytest

from baton.system.rate_meter import RateMeter


def test_nothing_is_measured_by_no_work_or_no_time() -> None:
    meter = RateMeter(half_life=100)
    meter.observe(0, 1)
    meter.observe(10, 0)
    assert meter.per_s == 0


def test_many_small_slow_pieces_do_not_hide_the_rate_of_a_large_one() -> None:
    meter = RateMeter(half_life=2000)
    meter.observe(2000, 1)
    for _ in range(20):
        meter.observe(2, 0.005)
    assert meter.per_s > 1800


def test_as_much_work_again_makes_earlier_work_count_half() -> None:
    meter = RateMeter(half_life=1000)
    meter.observe(1000, 1)
    meter.observe(1000, 4)
    assert meter.per_s == pytest.approx((500 + 1000) / (0.5 + 4))

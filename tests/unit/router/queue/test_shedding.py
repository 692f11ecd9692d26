"""The measured pace of a line, and the admission that is decided by it."""

import math

import pytest

from baton.testing.virtual_clock import VirtualClock
from baton.wire.failures import Overloaded
from services.router.queue.grant_pace import MAX_GRANTS, MEMORY_S, MIN_GRANTS, GrantPace
from services.router.queue.shedding import OVERLOAD_S, OVERLOAD_WAIT_S, SAFE_SHARE, Shedding

MAX_WAIT_S = 60.0


@pytest.fixture
def shedding(clock: VirtualClock) -> Shedding:
    return Shedding(MAX_WAIT_S, clock)


def grants(pace: GrantPace, clock: VirtualClock, num: int, interval_s: float) -> None:
    for _ in range(num):
        clock.advance(interval_s)
        pace.note()


def test_a_pace_is_unknown_before_the_first_grants(clock) -> None:
    pace = GrantPace(clock)
    pace.begin()
    grants(pace, clock, MIN_GRANTS - 1, 5.0)
    assert pace.interval_s == 0
    grants(pace, clock, 1, 5.0)
    assert pace.interval_s == pytest.approx(5.0)


def test_one_long_pause_between_two_grants_changes_the_pace_little(clock) -> None:
    pace = GrantPace(clock)
    pace.begin()
    grants(pace, clock, MAX_GRANTS, 0.25)
    clock.advance(8.0)
    pace.note()
    assert pace.interval_s <= 2 * 0.25


def test_grants_in_bursts_have_the_pace_of_their_mean(clock) -> None:
    pace = GrantPace(clock)
    pace.begin()
    for _ in range(10):
        grants(pace, clock, 3, 0.0)
        grants(pace, clock, 1, 1.0)
    assert pace.interval_s == pytest.approx(0.25)


def test_a_pause_counts_while_it_lasts(clock) -> None:
    pace = GrantPace(clock)
    pace.begin()
    grants(pace, clock, MAX_GRANTS, 0.1)
    clock.advance(33.0)
    assert pace.interval_s == pytest.approx((3.2 + 33.0) / 33)


def test_time_without_a_waiting_request_does_not_count(clock) -> None:
    pace = GrantPace(clock)
    pace.begin()
    grants(pace, clock, MAX_GRANTS, 0.1)
    pace.pause()
    clock.advance(30.0)
    pace.begin()
    grants(pace, clock, MIN_GRANTS, 0.1)
    assert pace.interval_s == pytest.approx(0.1)


def test_a_pace_of_long_ago_is_unknown(clock) -> None:
    pace = GrantPace(clock)
    pace.begin()
    grants(pace, clock, MAX_GRANTS, 1.0)
    pace.pause()
    clock.advance(MEMORY_S + 1)
    pace.begin()
    assert pace.interval_s == 0


def test_a_request_is_admitted_while_its_first_token_comes_in_time(shedding) -> None:
    shedding.check(wait_s=16.0, first_token_s=10.0, left_s=30.0)
    with pytest.raises(Overloaded) as caught:
        shedding.check(wait_s=17.0, first_token_s=10.0, left_s=30.0)
    assert caught.value.reason == "overloaded"
    assert caught.value.retry_after_s == 17.0


def test_without_a_deadline_only_the_predicted_wait_is_bounded(shedding) -> None:
    shedding.check(wait_s=SAFE_SHARE * MAX_WAIT_S, first_token_s=1000.0, left_s=math.inf)
    with pytest.raises(Overloaded):
        shedding.check(wait_s=SAFE_SHARE * MAX_WAIT_S + 1, first_token_s=0.0, left_s=math.inf)


def test_a_deadline_that_is_too_short_for_the_line_does_not_shorten_it_for_others(shedding) -> None:
    with pytest.raises(Overloaded):
        shedding.check(wait_s=10.0, first_token_s=0.0, left_s=1.0)
    shedding.check(wait_s=10.0, first_token_s=0.0, left_s=math.inf)


def test_the_line_is_shortened_for_those_that_have_little_more_time_than_who_was_refused(
    shedding, clock
) -> None:
    with pytest.raises(Overloaded):
        shedding.check(wait_s=9.0, first_token_s=0.0, left_s=10.0)
    with pytest.raises(Overloaded):
        shedding.check(wait_s=OVERLOAD_WAIT_S + 1, first_token_s=0.0, left_s=10.5)
    shedding.check(wait_s=OVERLOAD_WAIT_S + 1, first_token_s=0.0, left_s=30.0)
    clock.advance(OVERLOAD_S)
    shedding.check(wait_s=7.0, first_token_s=0.0, left_s=10.0)


def test_the_line_stays_short_until_none_has_been_refused_for_a_while(shedding, clock) -> None:
    with pytest.raises(Overloaded):
        shedding.check(wait_s=50.0, first_token_s=0.0, left_s=math.inf)
    clock.advance(OVERLOAD_S / 2)
    with pytest.raises(Overloaded):
        shedding.check(wait_s=OVERLOAD_WAIT_S + 1, first_token_s=0.0, left_s=math.inf)
    clock.advance(OVERLOAD_S - 1)
    shedding.check(wait_s=OVERLOAD_WAIT_S, first_token_s=0.0, left_s=math.inf)
    clock.advance(1)
    shedding.check(wait_s=10.0, first_token_s=0.0, left_s=math.inf)


def test_a_refusal_never_asks_for_less_than_a_second_or_more_than_the_longest_wait(
    shedding,
) -> None:
    assert shedding.refusal("full", 0.0).retry_after_s == 1.0
    assert shedding.refusal("full", 1000.0).retry_after_s == MAX_WAIT_S

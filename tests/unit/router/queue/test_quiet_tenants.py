"""Quiet tenants: those that had little of the latest service beside others that had much."""

import pytest

from baton.testing.virtual_clock import VirtualClock
from services.router.queue.fair_line import (
    LOOK_S,
    MAX_WAITING,
    WINDOW_S,
    FairLine,
    QuietTenants,
    Turn,
    Waiting,
)


@pytest.fixture
def tenants(clock: VirtualClock) -> QuietTenants:
    return QuietTenants(clock)


def charge(tenants: QuietTenants, clock: VirtualClock, **seconds: float) -> None:
    for tenant, had_s in seconds.items():
        tenants.charge(tenant, had_s)
    clock.advance(LOOK_S)


def test_a_tenant_with_a_small_share_is_quiet_beside_one_with_a_large_share(tenants, clock) -> None:
    charge(tenants, clock, loud=20.0, small=1.0)
    assert tenants.is_any()
    assert tenants.is_quiet("small")
    assert not tenants.is_quiet("loud")


def test_among_tenants_with_equal_shares_none_is_quiet(tenants, clock) -> None:
    charge(tenants, clock, one=10.0, other=8.0)
    assert not tenants.is_any()
    assert not tenants.is_quiet("one")


def test_a_tenant_alone_is_not_quiet_and_one_that_is_new_is(tenants, clock) -> None:
    charge(tenants, clock, alone=10.0)
    assert not tenants.is_any()
    assert not tenants.is_quiet("alone")
    assert tenants.is_quiet("new")


def test_service_is_forgotten_after_two_windows(tenants, clock) -> None:
    charge(tenants, clock, loud=20.0, small=1.0)
    for is_known in (True, False):
        clock.advance(WINDOW_S)
        charge(tenants, clock, loud=20.0)
        assert tenants.is_any() == is_known


def test_room_is_left_to_quiet_tenants_of_as_large_a_priority(clock) -> None:
    line: FairLine[Waiting] = FairLine(clock)
    for tenant, priority, had_s in (("loud", 1, 20.0), ("small", 1, 1.0), ("low", 0, 9.0)):
        line.charge(Turn(tenant, priority), had_s)
    clock.advance(LOOK_S)
    assert line.must_leave_room(Turn("loud", 1))
    assert line.must_leave_room(Turn("low", 0))
    assert not line.must_leave_room(Turn("small", 1))
    line.charge(Turn("high", 2), 1.0)
    clock.advance(LOOK_S)
    assert not line.must_leave_room(Turn("high", 2))


def test_a_tenant_that_comes_back_with_a_backlog_has_its_turns_and_no_more(clock) -> None:
    """Else it got every slot until it had as much as the others."""
    line: FairLine[Waiting] = FairLine(clock)
    line.charge(Turn("loud"), 20.0)
    line.charge(Turn("back"), 1.0)
    clock.advance(LOOK_S)
    for number in range(MAX_WAITING):
        line.enter(Waiting(Turn("back"), number, clock.now()))
        assert not line.must_leave_room(Turn("back"))
    line.enter(Waiting(Turn("back"), MAX_WAITING, clock.now()))
    assert line.must_leave_room(Turn("back"))


def test_service_before_a_long_pause_is_forgotten_at_once(tenants, clock) -> None:
    charge(tenants, clock, loud=20.0, small=1.0)
    clock.advance(60 * WINDOW_S)
    assert not tenants.is_any()
    assert tenants.is_quiet("loud")


def test_prompts_of_a_quiet_tenant_go_first_beside_a_loud_one_and_no_prompts_alone(clock) -> None:
    line: FairLine[Waiting] = FairLine(clock)
    line.charge(Turn("alone"), 1.0)
    assert not line.goes_first(Turn("alone"))
    clock.advance(LOOK_S)
    assert not line.goes_first(Turn("alone"))
    assert line.goes_first(Turn("quiet"))
    for number in range(MAX_WAITING + 1):
        line.enter(Waiting(Turn("quiet"), number, clock.now()))
    assert not line.goes_first(Turn("quiet"))

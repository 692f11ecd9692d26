"""The order of waiting requests: by priority, then by what their tenants have received."""

import random
from collections import Counter

import pytest

from baton.wire.key_registry import BATCH_PRIORITY
from services.router.queue.fair_line import (
    AGE_S,
    MAX_IDLE_TENANTS,
    MAX_PASSED,
    FairLine,
    FairShares,
    Turn,
    Waiting,
)
from services.router.queue.grant_pace import MIN_GRANTS


class Line:
    """A line whose requests are served one after the other."""

    def __init__(self, clock) -> None:
        self.line: FairLine[Waiting] = FairLine(clock)
        self.clock = clock
        self.number = 0

    def enter(self, tenant: str, num: int = 1, **turn) -> None:
        for _ in range(num):
            self.number += 1
            self.line.enter(Waiting(Turn(tenant, **turn), self.number, self.clock.now()))

    def serve(self, cost=lambda turn: 1.0) -> Turn:
        waiter = next(self.line.in_order())
        self.line.charge(waiter.turn, cost(waiter.turn))
        self.line.granted(waiter)
        return waiter.turn

    def serve_many(self, num: int, cost=lambda turn: 1.0) -> Counter[str]:
        return Counter(self.serve(cost).tenant for _ in range(num))


@pytest.fixture
def line(clock) -> Line:
    return Line(clock)


def test_the_requests_of_one_tenant_keep_their_order(line) -> None:
    line.enter("a", 5)
    assert [each.number for each in line.line.in_order()] == [1, 2, 3, 4, 5]


def test_a_tenant_that_comes_late_does_not_wait_for_the_backlog_of_another(line) -> None:
    line.enter("loud", 1000)
    line.serve_many(100)
    line.enter("quiet")
    assert "quiet" in [line.serve().tenant for _ in range(2)]


def test_tenants_share_by_the_time_of_the_engines_and_not_by_requests(line) -> None:
    line.enter("long", 400)
    line.enter("short", 400)
    served = line.serve_many(240, lambda turn: 5.0 if turn.tenant == "long" else 1.0)
    assert served["short"] == pytest.approx(200, abs=5)
    assert served["long"] == pytest.approx(40, abs=1)


def test_a_weight_is_a_share(line) -> None:
    line.enter("heavy", 400, weight=3.0)
    line.enter("light", 400)
    assert line.serve_many(200)["heavy"] == pytest.approx(150, abs=2)


@pytest.mark.parametrize("seed", range(20))
def test_two_tenants_that_wait_all_the_time_never_differ_by_more_than_one_request(
    line, seed
) -> None:
    rng = random.Random(seed)
    largest = 4.0
    weights = {"a": 1.0, "b": rng.choice([0.5, 1.0, 2.0])}
    served = dict.fromkeys(weights, 0.0)
    for tenant, weight in weights.items():
        line.enter(tenant, 2, weight=weight)
    for _ in range(300):
        cost = rng.uniform(0.1, largest)
        turn = line.serve(lambda _, cost=cost: cost)
        if turn.tenant in weights:
            served[turn.tenant] += cost / turn.weight
            line.enter(turn.tenant, weight=turn.weight)
        if rng.random() < 0.3:  # others come and go
            line.enter(f"other-{rng.randrange(3)}")
        assert abs(served["a"] - served["b"]) <= largest / min(weights.values())


def test_an_idle_tenant_saves_up_no_claim(line) -> None:
    line.enter("saver")
    line.serve()
    line.enter("worker", 300)
    line.serve_many(100)
    line.enter("saver", 300)
    assert line.serve_many(100)["saver"] == pytest.approx(50, abs=2)


def test_what_a_tenant_had_while_nobody_waited_is_not_held_against_it(line) -> None:
    for _ in range(1000):
        line.line.charge(Turn("busy"), 1.0)
    line.enter("busy", 100)
    line.enter("new", 100)
    assert line.serve_many(100)["busy"] == pytest.approx(50, abs=2)


def test_larger_priorities_go_first(line) -> None:
    line.enter("batch", priority=BATCH_PRIORITY)
    line.enter("a", priority=0)
    line.enter("b", priority=9)
    line.enter("c", priority=5)
    assert [line.serve().tenant for _ in range(4)] == ["b", "c", "a", "batch"]


def test_a_small_priority_does_not_starve_and_does_not_push(line, clock) -> None:
    line.enter("low", 100, priority=0)
    line.enter("high", 400, priority=9)
    assert line.serve_many(50)["low"] == 0
    clock.advance(AGE_S)
    assert line.serve_many(10 * (MAX_PASSED + 1))["low"] == 10


def test_the_predicted_wait_is_that_of_the_tenants_own_place(line, clock) -> None:
    line.enter("loud", 200)
    for _ in range(MIN_GRANTS + 20):
        clock.advance(0.5)
        line.serve()
    num_loud = 200 - MIN_GRANTS - 20
    assert line.line.predicted_wait_s(Turn("loud")) == pytest.approx(0.5 * num_loud)
    assert line.line.predicted_wait_s(Turn("quiet")) == pytest.approx(0.5)
    line.enter("quiet", 3)
    assert line.line.predicted_wait_s(Turn("quiet")) == pytest.approx(0.5 * (3 + 4))


def test_a_small_priority_waits_for_all_larger_ones_until_its_own_pace_is_known(
    line, clock
) -> None:
    line.enter("high", 100, priority=9)
    for _ in range(MIN_GRANTS):
        clock.advance(1.0)
        line.serve()
    assert line.line.predicted_wait_s(Turn("low")) == pytest.approx(100 - MIN_GRANTS)
    assert line.line.predicted_wait_s(Turn("other", 9)) == pytest.approx(1.0)


def test_what_a_tenant_holds_is_counted_over_its_priorities(line) -> None:
    line.enter("a", 2, num_bytes=100)
    line.enter("a", 1, num_bytes=50, priority=9)
    held = line.line.held("a")
    assert (held.num_requests, held.num_bytes) == (3, 250)
    line.serve_many(3)
    assert line.line.held("a").num_requests == len(line.line) == 0


def test_tenants_that_ask_once_are_forgotten() -> None:
    shares = FairShares()
    for number in range(2 * MAX_IDLE_TENANTS):
        shares.join(f"t{number}")
        shares.charge(f"t{number}", 0.0)
        shares.leave(f"t{number}")
    assert len(shares._served_s) <= MAX_IDLE_TENANTS + 1

"""Whose turn a worker's room is: in proportion to claims, and the same for every router."""

from collections import Counter

from baton.testing.virtual_clock import VirtualClock
from baton.wire.v1 import peers_pb2
from services.router.peers.turns import SILENT_S, STEPS_OF_A_TURN, TURN_S, Turns

MODEL = "m1"


def line(priority: int = 0, reserved: str = "", **weights: float) -> peers_pb2.PeerLine:
    tenants = [peers_pb2.WaitingTenant(tenant=t, weight=w) for t, w in weights.items()]
    return peers_pb2.PeerLine(
        model_fp=MODEL, priority=priority, tenants=tenants, reserved_worker_id=reserved
    )


class Routers:
    """The turns of several routers that hear each other."""

    def __init__(self, **lines: peers_pb2.PeerLine) -> None:
        self.clock = VirtualClock()
        self.each = {name: Turns(name, self.clock) for name in lines}
        self.tell(**lines)

    def tell(self, **lines: peers_pb2.PeerLine) -> None:
        for turns in self.each.values():
            for name, one in lines.items():
                turns.hear(name, peers_pb2.PeerLines(lines=[one]))

    def shares(self, num_turns: int = 1000) -> Counter[str]:
        """How often it was each router's turn; at each turn it was one router's."""
        shares: Counter[str] = Counter()
        for number in range(num_turns):
            step = number * STEPS_OF_A_TURN
            [first] = [
                name for name, turns in self.each.items() if not turns.note_room(MODEL, "d0", step)
            ]
            shares[first] += 1
        return shares


def test_each_worker_is_the_turn_of_one_router_at_a_time_and_of_all_in_turn() -> None:
    shares = Routers(a=line(x=1), b=line(y=1)).shares()
    assert 430 < shares["a"] < 570


def test_a_router_has_the_turns_of_its_tenants_weights() -> None:
    shares = Routers(a=line(x=1), b=line(y=1, z=2)).shares()
    assert 200 < shares["a"] < 300


def test_a_tenant_that_waits_at_several_routers_has_no_more_turns() -> None:
    shares = Routers(a=line(x=1), b=line(x=1), c=line(y=1)).shares()
    assert 430 < shares["c"] < 570


def test_the_largest_priority_has_all_turns() -> None:
    assert Routers(a=line(x=1), b=line(priority=1, y=1)).shares(50) == {"b": 50}
    assert Routers(a=line(x=1), b=line(priority=-1, y=1)).shares(50) == {"a": 50}


def test_the_room_of_a_peers_turn_is_left_alone_for_a_moment() -> None:
    routers = Routers(a=line(), b=line(y=1))
    own = routers.each["a"]
    assert own.note_room(MODEL, "d0", 0)
    assert own.kept_away(MODEL) == {"d0"}
    assert own.kept_away(MODEL, has_begun=True) == set()
    assert own.kept_away("other") == set()
    routers.clock.advance(TURN_S)
    assert own.kept_away(MODEL) == set()


def test_without_lines_elsewhere_no_room_is_left_alone() -> None:
    routers = Routers(a=line(x=1), b=line())
    assert not routers.each["a"].note_room(MODEL, "d0", 0)
    routers = Routers(a=line(x=1), b=line(y=1))
    routers.each["a"].lose("b")
    assert not any(routers.each["a"].note_room(MODEL, f"d{n}", 0) for n in range(20))


def test_a_peer_that_has_fallen_silent_has_no_claim() -> None:
    routers = Routers(a=line(x=1), b=line(y=1))
    routers.clock.advance(SILENT_S + 0.01)
    routers.tell(a=line(x=1))
    assert routers.shares(20)["a"] == 20


def test_one_router_reserves_a_worker_at_a_time_and_all_leave_it_alone() -> None:
    routers = Routers(a=line(x=1), b=line(y=1))
    assert routers.each["a"].may_reserve(MODEL)
    assert routers.each["b"].may_reserve(MODEL)
    routers.tell(b=line(reserved="d0", y=1))
    assert routers.each["a"].kept_away(MODEL, has_begun=True) == {"d0"}
    assert not routers.each["a"].may_reserve(MODEL)
    assert routers.each["b"].may_reserve(MODEL)
    assert routers.each["b"].kept_away(MODEL, has_begun=True) == set()


def test_of_two_routers_that_reserved_at_once_one_goes_on() -> None:
    routers = Routers(a=line(reserved="d0", x=1), b=line(reserved="d1", y=1))
    assert routers.each["a"].may_reserve(MODEL)
    assert not routers.each["b"].may_reserve(MODEL)

"""Picks in several zones: pairs within one first, overflow by cost and with its reason."""

from random import Random

import pytest

from baton.testing.virtual_clock import VirtualClock, run_virtual
from baton.wire.pick_reasons import overflow_of
from baton.wire.v1 import worker_pb2
from services.router.fleet.reported import FarHandoff
from services.router.fleet.views import Policy
from services.router.fleet.zones import MAX_PAIRS, ZoneLinks
from services.router.pick.picker import pick
from services.router.settings import Settings

TRUST_S = 60.0


@pytest.fixture
def links(clock: VirtualClock) -> ZoneLinks:
    return ZoneLinks(clock, TRUST_S)


@pytest.fixture
def choose(demand, links):
    def run(decodes, prefills, seed=1, **settings):
        policy = Policy.of(Settings(**settings), links)
        return pick(demand(), decodes, prefills, policy, Random(seed))

    return run


@pytest.fixture
def two_zones(view):
    """One worker of each role in each of two zones; `changes` are those of a worker by its id."""

    def build(**changes):
        def worker(name: str):
            return view(name, zone=name[-1], **changes.get(name, {}))

        return [worker("d_a"), worker("d_b")], [worker("p_a"), worker("p_b")]

    return build


def names(choice) -> tuple[str, str]:
    return choice.prefill.worker_id, choice.decode.worker_id


def test_equal_workers_are_paired_within_their_zones(choose, two_zones) -> None:
    picked = {names(choose(*two_zones(), seed=seed)) for seed in range(30)}
    assert picked == {("p_a", "d_a"), ("p_b", "d_b")}


def test_a_zone_without_a_free_prefill_worker_takes_one_of_another_and_says_why(
    choose, two_zones
) -> None:
    decodes, prefills = two_zones(p_a={"num_queued_prefill_tokens": 5000})
    choice = choose(decodes[:1], prefills)
    assert names(choice) == ("p_b", "d_a")
    reasons = choice.reasons.to_wire()
    assert overflow_of(reasons).startswith("prefill in zone b, decode in a: d_a+p_a costs ")
    assert overflow_of(reasons).endswith("s more, wait")


def test_a_pair_within_a_zone_is_named_however_far_behind_it_is(choose, view) -> None:
    prefills = [view(f"p{number}", zone="b") for number in range(8)]
    busy = view("p9", zone="a", num_queued_prefill_tokens=90_000)
    reasons = choose([view("d0", zone="a")], [*prefills, busy]).reasons.to_wire()
    assert "p9" in {choice.prefill_worker_id for choice in reasons.choices}
    assert "d0+p9 costs" in overflow_of(reasons)


def test_an_overflow_without_a_pair_in_one_zone_says_so(choose, two_zones) -> None:
    decodes, prefills = two_zones()
    reasons = choose(decodes[:1], prefills[1:]).reasons.to_wire()
    assert overflow_of(reasons).endswith("no pair within a zone could be chosen")


def test_a_pair_within_one_zone_is_not_an_overflow(choose, two_zones) -> None:
    assert overflow_of(choose(*two_zones()).reasons.to_wire()) == ""


def test_a_link_counts_as_slow_until_it_is_measured(choose, two_zones) -> None:
    wait = {"num_queued_prefill_tokens": 100}
    decodes, prefills = two_zones(p_a=wait)
    assert names(choose(decodes[:1], prefills)) == ("p_a", "d_a")
    fast = {"prior_far_handoff_bytes_per_s": 1e9}
    assert names(choose(decodes[:1], prefills, **fast)) == ("p_b", "d_a")


def test_a_handoff_is_priced_by_the_measured_rate_of_its_pair_of_zones(choose, view, links) -> None:
    links.note("a", (), (FarHandoff("b", 1e7, 0.0), FarHandoff("c", 9e8, 0.0)))
    prefills = [view("p_b", zone="b"), view("p_c", zone="c")]
    choice = choose([view("d_a", zone="a")], prefills)
    assert choice.prefill.worker_id == "p_c"
    assert choice.reasons.chosen.costs.handoff_s == pytest.approx(32e6 / 9e8)
    # The other way nothing was measured.
    other = choose([view("d_c", zone="c")], [view("p_a", zone="a")])
    assert other.reasons.chosen.costs.handoff_s == pytest.approx(32e6 / 125e6)


def test_a_worker_of_an_unknown_zone_is_near_to_all(choose, view) -> None:
    choice = choose([view("d0", zone="a")], [view("p0")])
    assert choice.reasons.chosen.costs.zone_s == 0.0
    assert choice.reasons.chosen.costs.handoff_s == pytest.approx(0.032)


def test_what_was_measured_long_ago_counts_as_unknown(links, clock) -> None:
    links.note("a", (), (FarHandoff("b", 1e9, 0.01),))
    assert links.between("b", "a").bytes_per_s == 1e9
    clock.advance(TRUST_S + 1)
    assert links.between("b", "a").bytes_per_s == 0.0


def test_only_new_measurements_change_the_mean(links) -> None:
    told = (FarHandoff("b", 1e9, 0.0),)
    links.note("a", (), told)
    links.note("a", told, told)
    assert links.between("b", "a").bytes_per_s == 1e9
    links.note("a", told, (FarHandoff("b", 2e9, 0.0),))
    assert 1e9 < links.between("b", "a").bytes_per_s < 2e9


def test_no_more_pairs_are_remembered_than_there_may_be_zones(links) -> None:
    for number in range(MAX_PAIRS + 5):
        links.note("a", (), (FarHandoff(f"z{number}", 1e9, 0.0),))
    assert links.between("z0", "a").bytes_per_s == 0.0
    assert links.between(f"z{MAX_PAIRS + 4}", "a").bytes_per_s == 1e9


def test_requests_stay_in_their_zones_until_one_is_overloaded(router, clock) -> None:
    async def scenario() -> None:
        fleet = router()
        decodes = [fleet.decode(f"d_{zone}", zone=zone) for zone in "ab"]
        prefills = {zone: fleet.prefill(f"p_{zone}", zone=zone) for zone in "ab"}
        rates = {"prefill_tokens_per_s": 1000.0, "decode_step_s": 0.01}

        def report(*accepted: str) -> None:
            for worker in (*decodes, *prefills.values()):
                worker.load(*accepted, handoff_bytes_per_s=1e6, **rates)

        report()

        async def picked(number: int):
            response = await fleet.pick(f"r{number}")
            report(f"r{number}")
            return response

        calm = [await picked(number) for number in range(20)]
        assert {r.decode.worker_id[-1] == r.prefill.worker_id[-1] for r in calm} == {True}
        decodes[1].send(draining=True)
        prefills["a"].load(num_queued_prefill_tokens=10_000, prefill_tokens_per_s=1000.0)
        overflow = await picked(100)
        assert (overflow.decode.worker_id, overflow.prefill.worker_id) == ("d_a", "p_b")
        assert "wait" in overflow_of(overflow.reasons)
        far = worker_pb2.FarHandoff(zone="b", bytes_per_s=100.0)
        decodes[0].load(prefill_tokens_per_s=1000.0, far_handoffs=[far])
        assert (await picked(101)).prefill.worker_id == "p_a", "the link is too slow"

    run_virtual(scenario(), clock)

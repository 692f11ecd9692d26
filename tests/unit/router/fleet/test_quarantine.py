"""Requests that kill cores: suspects, quarantine, and how both end."""

from typing import Any

import pytest

from baton.testing.virtual_clock import VirtualClock, run_virtual
from baton.wire.failures import BatonError, InvalidRequest
from baton.wire.v1 import router_pb2
from services.router.fleet.quarantine import MAX_FINGERPRINTS, QUARANTINE_S, Quarantine


@pytest.fixture
def quarantine(clock: VirtualClock) -> Quarantine:
    return Quarantine(clock)


def is_refused(quarantine: Quarantine, fingerprint: bytes, num_deaths: int = 0) -> bool:
    try:
        quarantine.admit(fingerprint, num_deaths, "r1")
    except InvalidRequest as error:
        return (error.reason, error.row.http_status) == ("request_quarantined", 400)
    return False


def test_a_request_that_never_killed_is_no_suspect(quarantine: Quarantine) -> None:
    assert quarantine.admit(b"a", 0, "r1") is False
    assert len(quarantine) == 0


def test_after_one_death_it_and_its_likes_are_suspects(quarantine: Quarantine) -> None:
    assert quarantine.admit(b"a", 1, "r1") is True
    assert quarantine.admit(b"a", 0, "r2") is True
    assert quarantine.admit(b"b", 0, "r3") is False


def test_after_two_deaths_it_and_its_likes_are_refused_for_ten_minutes(
    quarantine: Quarantine, clock: VirtualClock
) -> None:
    assert not is_refused(quarantine, b"a", 1)
    assert is_refused(quarantine, b"a", 2)
    assert is_refused(quarantine, b"a")
    clock.advance(QUARANTINE_S - 1)
    assert is_refused(quarantine, b"a")
    clock.advance(2)
    assert not is_refused(quarantine, b"a")


def test_two_requests_that_die_once_each_are_not_added_up(quarantine: Quarantine) -> None:
    assert not is_refused(quarantine, b"a", 1)
    assert not is_refused(quarantine, b"a", 1)


def test_deaths_without_a_fingerprint_count_for_their_own_request(quarantine) -> None:
    assert quarantine.admit(b"", 1, "r1") is True
    assert is_refused(quarantine, b"", 2)
    assert quarantine.admit(b"", 0, "r2") is False
    assert len(quarantine) == 0


def test_the_memory_is_bounded(quarantine: Quarantine) -> None:
    for number in range(MAX_FINGERPRINTS + 10):
        quarantine.admit(number.to_bytes(8, "big"), 1, "r")
    quarantine.admit(b"x" * 1000, 1, "r")
    assert len(quarantine) == MAX_FINGERPRINTS


def test_a_new_version_of_the_workers_gets_another_chance(quarantine: Quarantine) -> None:
    quarantine.greet("1.0")
    assert is_refused(quarantine, b"a", 2)
    quarantine.greet("1.0")
    assert is_refused(quarantine, b"a")
    quarantine.greet("1.1")
    assert not is_refused(quarantine, b"a")


def test_suspects_that_proved_harmless_are_forgotten_but_no_killers(quarantine) -> None:
    quarantine.admit(b"a", 1, "r1")
    assert is_refused(quarantine, b"b", 2)
    quarantine.clear([b"a", b"b", b"c"])
    assert quarantine.admit(b"a", 0, "r1") is False
    assert is_refused(quarantine, b"b")


def test_a_quarantined_request_is_refused_without_waiting_in_the_queue(router, clock) -> None:
    async def scenario() -> None:
        fleet: Any = router()
        decode = fleet.decode()
        fleet.prefill()
        decode.load(num_running=4)  # no room for a request
        with pytest.raises(BatonError, match="two engine processes"):
            await fleet.pick("r1", poison_fingerprint=b"a", num_deaths=2)
        with pytest.raises(BatonError, match="two engine processes"):
            await fleet.pick("r2", poison_fingerprint=b"a")
        assert clock.now() == 0

    run_virtual(scenario(), clock)


def test_a_pick_marks_a_suspect_that_must_compute_by_itself(router, clock) -> None:
    async def scenario() -> None:
        fleet: Any = router()
        fleet.decode()
        fleet.prefill()
        assert not (await fleet.pick("r0", poison_fingerprint=b"a")).is_suspect
        assert (await fleet.pick("r0", poison_fingerprint=b"a", num_deaths=1)).is_suspect
        assert (await fleet.pick("r1", poison_fingerprint=b"a")).is_suspect

    run_virtual(scenario(), clock)


def test_what_one_router_refuses_another_one_refuses_as_long(clock: VirtualClock) -> None:
    first, second = Quarantine(clock), Quarantine(clock)
    for each in (first, second):
        each.greet("1")
    assert is_refused(first, b"a", 2)
    assert not is_refused(first, b"b", 1), "one death makes a suspect, which stays in this router"
    clock.advance(400)
    second.learn(first.reported())
    assert is_refused(second, b"a")
    assert second.admit(b"b", 0, "r1") is False
    clock.advance(201)
    assert not is_refused(second, b"a")


def test_an_entry_that_ends_soon_is_not_in_the_view(clock: VirtualClock) -> None:
    quarantine = Quarantine(clock)
    assert is_refused(quarantine, b"a", 2)
    clock.advance(QUARANTINE_S - 1)
    assert quarantine.reported() == []


def test_nothing_is_learnt_from_routers_of_other_versions(clock: VirtualClock) -> None:
    older, newer = Quarantine(clock), Quarantine(clock)
    older.greet("1")
    newer.greet("1")
    newer.greet("2")
    assert is_refused(older, b"a", 2)
    newer.learn(older.reported())
    assert not is_refused(newer, b"a")


def test_what_is_learnt_is_bounded_and_what_ends_first_goes_first(clock: VirtualClock) -> None:
    quarantine = Quarantine(clock)
    reported = [
        router_pb2.Quarantined(fingerprint=b"%d" % number, left_s=10 + number % 7)
        for number in range(MAX_FINGERPRINTS + 50)
    ]
    quarantine.learn(reported)
    assert len(quarantine) == MAX_FINGERPRINTS
    clock.advance(16.5)
    assert not is_refused(quarantine, b"7")
    assert len(quarantine) == 0

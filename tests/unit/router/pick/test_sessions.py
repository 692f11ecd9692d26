"""Sessions: requests of one name meet the same worker, unless something weighs more."""

import pytest

from baton.testing.virtual_clock import run_virtual
from services.router.pick import sessions
from services.router.pick.sessions import Sessions
from tests.unit.router.peers.told import news_of, placed

SESSION, OTHER = b"s" * 16, b"o" * 16


@pytest.fixture
def run(clock):
    return lambda scenario: run_virtual(scenario(), clock)


async def picked(fleet, name: str, **fields) -> tuple[str, str]:
    response = await fleet.pick(name, session=SESSION, **fields)
    # The next pick finds all workers as idle as this one did.
    fleet.core._fleet.end_leases(name)
    return response.decode.worker_id, response.prefill.worker_id


@pytest.mark.parametrize("num_workers", [4, 20])
def test_requests_of_a_session_meet_the_same_workers(router, run, num_workers: int) -> None:
    async def scenario() -> None:
        fleet = router()
        for number in range(num_workers):
            fleet.decode(f"d{number}")
            fleet.prefill(f"p{number}")
        pairs = {await picked(fleet, f"r{number}") for number in range(8)}
        assert len(pairs) == 1
        others = set()
        for number in range(8):
            response = await fleet.pick(f"x{number}", session=b"")
            fleet.core._fleet.end_leases(f"x{number}")
            others.add(response.prefill.worker_id)
        assert len(others) > 1

    run(scenario)


def test_a_longer_cached_prefix_elsewhere_decides(router, run, hashes) -> None:
    async def scenario() -> None:
        fleet = router()
        workers = {f"d{number}": fleet.decode(f"d{number}") for number in range(3)}
        first, _ = await picked(fleet, "r1", num_prompt_tokens=1024)
        other = next(name for name in workers if name != first)
        numbers = range(1, 33)
        workers[other].stored(*numbers)
        prompt = {"block_hashes": hashes(*numbers), "num_prompt_tokens": 1024}
        again, _ = await picked(fleet, "r2", **prompt)
        assert again == other

    run(scenario)


def test_a_busy_worker_is_left_for_an_idle_one(router, run) -> None:
    async def scenario() -> None:
        fleet = router()
        workers = {f"d{number}": fleet.decode(f"d{number}") for number in range(3)}
        first, _ = await picked(fleet, "r1")
        workers[first].load(num_queued_prefill_tokens=50_000)
        again, _ = await picked(fleet, "r2")
        assert again != first

    run(scenario)


def test_a_worker_of_the_session_without_room_takes_no_place_of_a_shortlist(router, run) -> None:
    async def scenario() -> None:
        fleet = router()
        workers = {f"d{number}": fleet.decode(f"d{number}") for number in range(20)}
        fleet.prefill()
        first, _ = await picked(fleet, "r1", num_prompt_tokens=1024)
        workers[first].load(num_blocks_free=55)  # 64 are needed, a session counts for 16
        response = await fleet.pick("r2", session=SESSION, num_prompt_tokens=1024)
        assert not response.reasons.left_out

    run(scenario)


def test_a_peer_tells_who_served_a_session(router, run) -> None:
    async def scenario() -> None:
        fleet = router()
        for number in range(4):
            fleet.decode(f"d{number}")
        fleet.core.take_news("b", news_of(placed("p", "d2", "unknown", session=SESSION)))
        fleet.core._fleet.end_leases("p")
        assert {(await picked(fleet, f"r{number}"))[0] for number in range(4)} == {"d2"}

    run(scenario)


def test_sessions_are_bounded_and_belong_to_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 2)
    kept = Sessions()
    kept.note("a", SESSION, ["w1"])
    kept.note("b", SESSION, ["w2"])
    assert kept.workers("a", SESSION) == {"w1"}
    assert not kept.workers("a", OTHER)
    kept.note("a", OTHER, ["w3"])
    assert not kept.workers("a", SESSION)
    assert kept.workers("b", SESSION) == {"w2"}

"""Refusals of routers that still hold: no work is done for what would meet the same line."""

import asyncio
from dataclasses import replace

import pytest

from baton.testing.virtual_clock import VirtualClock
from baton.wire.failures import NoRoom, Overloaded
from services.gateway.routing.full_lines import ASKING_S, FullLines, Place
from tests.unit.gateway.fakes import Fleet, simulate

PLACE = Place(model_fp="m", tenant="acme", priority=0, allowance_s=10.0, num_bytes=100)


def full(wait_s: float) -> Overloaded:
    return Overloaded(f"the line is {wait_s} s long", retry_after_s=wait_s)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def lines(clock: VirtualClock) -> FullLines:
    return FullLines(clock)


def test_a_line_that_was_too_long_is_so_for_half_of_its_wait(
    clock: VirtualClock, lines: FullLines
) -> None:
    lines.check(PLACE)
    lines.note(PLACE, full(1.6))
    clock.advance(0.5)
    with pytest.raises(Overloaded) as caught:
        lines.check(PLACE)
    assert caught.value.retry_after_s == pytest.approx(1.1)
    clock.advance(0.3)
    lines.check(PLACE)


def test_while_one_asks_the_router_again_those_beside_it_are_refused(
    clock: VirtualClock, lines: FullLines
) -> None:
    lines.note(PLACE, full(60.0))
    clock.advance(1.0)
    lines.check(PLACE)
    with pytest.raises(Overloaded):
        lines.check(PLACE)
    clock.advance(ASKING_S)
    lines.check(PLACE)


def test_a_short_line_closes_nothing(lines: FullLines) -> None:
    lines.note(PLACE, full(1.0))
    lines.check(PLACE)


def test_the_routers_are_asked_again_after_a_second_however_long_the_line_is(
    clock: VirtualClock, lines: FullLines
) -> None:
    lines.note(PLACE, full(60.0))
    clock.advance(0.99)
    with pytest.raises(Overloaded) as caught:
        lines.check(PLACE)
    assert caught.value.retry_after_s == pytest.approx(59.01)
    clock.advance(0.01)
    lines.check(PLACE)


@pytest.mark.parametrize(
    "other",
    [
        {"model_fp": "another"},
        {"tenant": "another"},
        {"priority": 1},
        {"allowance_s": 10.1},
        {"num_bytes": 99},
    ],
)
def test_a_refusal_tells_nothing_of_other_lines_more_time_or_smaller_prompts(
    lines: FullLines, other: dict[str, object]
) -> None:
    lines.note(PLACE, full(60.0))
    lines.check(replace(PLACE, **other))  # type: ignore[arg-type]
    with pytest.raises(Overloaded):
        lines.check(replace(PLACE, allowance_s=5.0, num_bytes=200))


def test_the_oldest_lines_are_forgotten(lines: FullLines) -> None:
    for number in range(10_001):
        lines.note(replace(PLACE, tenant=f"t{number}"), full(60.0))
    lines.check(replace(PLACE, tenant="t0"))
    with pytest.raises(Overloaded):
        lines.check(replace(PLACE, tenant="t1"))


def test_a_flood_behind_a_full_line_is_tokenized_and_reserved_once() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.router.failure = full(4.0)
        for _ in range(100):
            with pytest.raises(Overloaded):
                await fleet.chat()
        fleet.router.failure = None
        await asyncio.sleep(1.0)
        assert len(fleet.tokenizer.encoded) == 1
        assert len(fleet.quota.settled) == 1
        assert (await fleet.chat()).text() == "Hello there."

    simulate(scenario)


def test_a_request_that_a_worker_refused_first_closes_no_line() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.workers["w1"].refusal = NoRoom("no slot")
        fleet.router.queue_s = 0.1
        asked = fleet.tasks.create_task(refused(fleet))
        await asyncio.sleep(0.15)
        assert len(fleet.router.picked) == 2
        fleet.router.failure = full(4.0)
        await asked
        fleet.router.failure = None
        await fleet.chat()

    async def refused(fleet: Fleet) -> None:
        with pytest.raises(Overloaded):
            await fleet.chat()

    simulate(scenario)

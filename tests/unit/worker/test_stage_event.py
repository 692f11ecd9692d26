import asyncio

import pytest

from baton.testing.virtual_clock import run_virtual
from baton.worker.stage_event import StageEvent


def test_a_stage_that_was_reached_before_is_not_waited_for() -> None:
    async def scenario() -> None:
        event = StageEvent()
        event.advance(2)
        event.advance(1)
        await event.reach(2)
        assert event.stage == 2

    run_virtual(scenario())


def test_one_that_waits_goes_on_at_its_stage_and_not_before() -> None:
    async def scenario() -> None:
        event = StageEvent()
        waiting = asyncio.create_task(event.reach(2))
        for stage, is_over in ((0, False), (1, False), (2, True)):
            event.advance(stage)
            for _ in range(3):
                await asyncio.sleep(0)
            assert waiting.done() == is_over

    run_virtual(scenario())


def test_what_was_reached_counts_although_a_failure_came_after_it() -> None:
    async def scenario() -> None:
        event = StageEvent()
        event.advance(1)
        event.fail(ValueError("first"))
        event.fail(ValueError("second"))
        await event.reach(1)
        with pytest.raises(ValueError, match="first"):
            await event.reach(2)

    run_virtual(scenario())


def test_a_failure_wakes_one_that_waits() -> None:
    async def scenario() -> None:
        event = StageEvent()
        waiting = asyncio.create_task(event.reach(1))
        await asyncio.sleep(0)
        event.fail(ValueError("over"))
        with pytest.raises(ValueError, match="over"):
            await waiting

    run_virtual(scenario())


def test_news_of_a_stage_wake_one_that_waits_for_news() -> None:
    async def scenario() -> None:
        event = StageEvent()
        event.advance(1)
        waiting = asyncio.create_task(event.news())
        await asyncio.sleep(0)
        assert not waiting.done()
        event.advance(1)
        await waiting

    run_virtual(scenario())

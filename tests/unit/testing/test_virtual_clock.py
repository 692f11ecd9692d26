import asyncio

import pytest

from baton.testing.virtual_clock import Deadlock, VirtualClock, run_virtual


def test_an_hour_passes_at_once_and_timers_fire_in_order() -> None:
    clock = VirtualClock()
    fired = []

    async def wait(seconds: float) -> None:
        await asyncio.sleep(seconds)
        fired.append((seconds, clock.now()))

    async def scenario() -> None:
        async with asyncio.TaskGroup() as group:
            for seconds in (3600.0, 0.001, 2.0):
                group.create_task(wait(seconds))

    run_virtual(scenario(), clock)
    assert [seconds for seconds, _ in fired] == [0.001, 2.0, 3600.0]
    assert all(at == pytest.approx(seconds) for seconds, at in fired)


def test_timeouts_use_virtual_time() -> None:
    async def scenario() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.Event().wait()

    run_virtual(scenario())


def test_waiting_for_nothing_is_a_deadlock_not_a_hang() -> None:
    async def scenario() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        run_virtual(scenario())

"""A router under more load than its workers can do: it refuses early what would come too late."""

import asyncio
import math

import pytest

from baton.testing.virtual_clock import VirtualClock, run_virtual
from baton.wire.failures import Overloaded
from tests.unit.router.conftest import RouterInMemory
from tests.unit.router.queue.open_loop import OpenLoop

FLEETS = [
    {"num_workers": 1, "slots": 4, "first_token_s": 0.6, "service_s": 1.0},
    {"num_workers": 64, "slots": 1, "first_token_s": 2.0, "service_s": 8.0},
]


@pytest.fixture
def run(clock):
    return lambda scenario: run_virtual(scenario(), clock)


@pytest.mark.parametrize("sizes", FLEETS, ids=["4 slots", "64 workers"])
@pytest.mark.parametrize("due_s", [30.0, None], ids=["due in 30 s", "without a deadline"])
def test_goodput_stands_at_three_times_the_capacity(router, run, sizes, due_s) -> None:
    async def scenario() -> None:
        loop = OpenLoop(router(stale_after_s=3600), **sizes)
        # The longest wait without a deadline, 48 s, is reached after 24 s.
        await loop.run(lambda it: it.send(3 * it.capacity_per_s, 50, due_s=due_s))
        goodput = len(loop.served(20, 50)) / 30
        assert goodput >= 0.9 * loop.capacity_per_s
        assert loop.num_too_late == 0, "prefill was spent on a request that came too late"
        assert loop.refused(0, 50)
        for each in loop.refused(0, 50):
            assert each.error is not None
            assert (each.error.reason, each.error.row.http_status) == ("overloaded", 503)
            assert 1 <= each.error.retry_after_s <= 60
        late = [each.ended_at - each.arrived_at for each in loop.refused(20, 50)]
        assert sorted(late)[math.ceil(0.99 * len(late)) - 1] <= 0.02

    run(scenario)


@pytest.mark.parametrize(
    ("sizes", "due_s"),
    [(FLEETS[0], None), (FLEETS[0], 30.0), (FLEETS[1], None)],
    ids=["4 slots", "4 slots, due in 30 s", "64 workers"],
)
def test_all_is_normal_again_soon_after_the_overload(router, run, sizes, due_s) -> None:
    async def scenario() -> None:
        loop = OpenLoop(router(stale_after_s=3600), **sizes)

        async def load(it: OpenLoop) -> None:
            for load, seconds in ((0.5, 20), (3, 70), (0.8, 60)):
                await it.send(load * it.capacity_per_s, seconds, due_s=due_s)

        await loop.run(load)
        assert not loop.refused(0, 20)
        assert loop.refused(80, 90)
        assert not loop.refused(105, 150)
        normal = [each.first_token_s for each in loop.served(105, 150)]
        assert len(normal) >= 0.9 * 45 * 0.8 * loop.capacity_per_s
        waits = sorted(each - loop.first_token_s for each in normal)
        assert waits[len(waits) // 2] <= loop.service_s

    run(scenario)


def test_a_fleet_that_has_measured_nothing_refuses_nobody(router, run) -> None:
    async def scenario() -> None:
        loop = OpenLoop(router(stale_after_s=3600), slots=2, first_token_s=9.0, service_s=12.0)

        async def burst(it: OpenLoop) -> None:
            await asyncio.gather(*(it.one() for _ in range(8)))

        await loop.run(burst)
        assert len(loop.served(0, 100)) == 8

    run(scenario)


def test_an_idle_worker_tries_a_prompt_that_is_predicted_to_be_late(router, run) -> None:
    async def scenario() -> None:
        fleet = router(stale_after_s=3600)
        decode = fleet.decode()
        decode.load(prefill_tokens_per_s=10.0)
        assert await fleet.pick("r1", num_prompt_tokens=640, timeout_s=30)
        with pytest.raises(Overloaded, match="due in 30 s") as caught:
            await fleet.pick("r2", num_prompt_tokens=640, timeout_s=30)
        assert caught.value.retry_after_s >= 64
        assert await fleet.pick("r3", num_prompt_tokens=640)

    run(scenario)


class MovingClock(VirtualClock):
    """Moves while code runs, as a real clock does."""

    def now(self) -> float:
        self.advance(20e-6)
        return super().now()


def test_an_idle_worker_tries_it_on_a_clock_that_moves_while_the_router_picks() -> None:
    clock = MovingClock()

    async def scenario() -> None:
        fleet = RouterInMemory(clock, stale_after_s=3600)
        fleet.decode().load(prefill_tokens_per_s=10.0)
        assert await fleet.pick("r1", num_prompt_tokens=640, timeout_s=30)

    run_virtual(scenario(), clock)


def test_a_request_that_has_waited_too_long_is_refused_when_its_turn_comes(router, run) -> None:
    async def scenario() -> None:
        fleet = router(stale_after_s=3600)
        decode = fleet.decode()
        decode.load(num_running=4, prefill_tokens_per_s=100.0)
        waiting = asyncio.create_task(fleet.pick("r1", num_prompt_tokens=640, timeout_s=10))
        await asyncio.sleep(5.0)
        decode.load(num_running=3, prefill_tokens_per_s=100.1)
        with pytest.raises(Overloaded):
            await waiting

    run(scenario)

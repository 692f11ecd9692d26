"""A request that needs a whole worker to itself, in a fleet that is full: it is served, and what
is behind it in the router's queue does not wait until it is."""

import asyncio

import pytest

from baton.testing.virtual_clock import VirtualClock, run_virtual
from services.router.pick.head_of_line import MAX_RESERVED_S
from services.tokenizer.served_model import ServedModel
from tests.simulation.fleet import Fleet, fleet_of, load_sim_model

NUM_SLOTS = 4
LONG = 1980
NUM_USERS = 12  # each has one request open: more than two workers take


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    return run_virtual(load_sim_model(tmp_path_factory.mktemp("model")))


class Users:
    """Ask one small thing after the other; notes the longest time in which none got an answer."""

    def __init__(self, fleet: Fleet, clock: VirtualClock) -> None:
        self._fleet = fleet
        self._clock = clock
        self._answered_s = clock.now()
        self.longest_pause_s = 0.0

    def look(self) -> None:
        pause_s = self._clock.now() - self._answered_s
        self.longest_pause_s = max(self.longest_pause_s, pause_s)

    async def run(self, user: int) -> None:
        for number in range(10_000):
            await self._fleet.ask(f"{user} asks {number}", max_tokens=100)
            self.look()
            self._answered_s = self._clock.now()


async def ask_wide(fleet: Fleet, max_tokens: int = 20) -> None:
    answer = await fleet.ask("many at once", max_tokens=max_tokens, n=NUM_SLOTS)
    assert len(answer.finish_reasons) == NUM_SLOTS


async def ask_long(fleet: Fleet, number: int) -> None:
    await fleet.ask(f"long story {number}", max_tokens=LONG)


def test_a_request_for_a_whole_worker_is_served_and_holds_nobody_up(model: ServedModel) -> None:
    clock = VirtualClock()

    async def scenario() -> None:
        sizes = {"num_prefill": 1, "num_decode": 2, "num_slots": NUM_SLOTS}
        async with fleet_of(1, clock, model, **sizes) as fleet:
            long = [asyncio.create_task(ask_long(fleet, number)) for number in range(2)]
            await asyncio.sleep(0.1)
            users = Users(fleet, clock)
            running = [asyncio.create_task(users.run(user)) for user in range(NUM_USERS)]
            await asyncio.sleep(4.0)
            alone_s, began_s = users.longest_pause_s, clock.now()
            async with asyncio.timeout(MAX_RESERVED_S):
                await ask_wide(fleet)
            users.look()
            assert clock.now() - began_s > 4 * alone_s, "it had to wait"
            assert users.longest_pause_s < 2 * alone_s
            for task in running:
                task.cancel()
            await asyncio.gather(*running, *long, return_exceptions=True)
            await fleet.quiet()

    run_virtual(scenario(), clock)


def test_a_worker_is_not_kept_for_ever(model: ServedModel) -> None:
    clock = VirtualClock()

    async def scenario() -> None:
        sizes = {"num_prefill": 1, "num_decode": 1, "num_slots": NUM_SLOTS}
        async with fleet_of(1, clock, model, **sizes) as fleet:
            async with asyncio.TaskGroup() as tasks:
                long = [tasks.create_task(ask_long(fleet, n)) for n in range(NUM_SLOTS - 1)]
                await asyncio.sleep(0.5)
                wide = tasks.create_task(ask_wide(fleet))
                await asyncio.sleep(0.5)
                began_s = clock.now()
                await fleet.ask("a small thing", max_tokens=5)
                assert clock.now() - began_s < MAX_RESERVED_S + 1.0
                assert not any(task.done() for task in long)
                assert not wide.done()
            await fleet.quiet()

    run_virtual(scenario(), clock)

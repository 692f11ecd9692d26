"""A whole fleet under three times the load that it can do, on virtual time."""

import asyncio
import random
from pathlib import Path

import pytest

from baton.testing.virtual_clock import VirtualClock, run_virtual
from baton.wire.failures import BatonError
from tests.simulation import fleet as simulation
from tests.simulation.fleet import Fleet, running_fleet

NUM_SLOTS = 2
# An answer takes somewhat over half a second, in few steps: they are what a run costs.
STEP_S, TOKEN_S, MAX_TOKENS = 0.02, 0.0008, 25


async def capacity_per_s(fleet: Fleet) -> float:
    """Answers a second with all slots busy."""
    began = fleet.clock.now()
    await asyncio.gather(*(fleet.ask("hello", max_tokens=MAX_TOKENS) for _ in range(5 * NUM_SLOTS)))
    return 5 * NUM_SLOTS / (fleet.clock.now() - began)


@pytest.mark.parametrize("first_token_s", [3.0, None], ids=["due in 3 s", "without a deadline"])
def test_answers_stand_at_three_times_the_capacity_and_no_wait_ends_in_a_504(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_token_s: float | None
) -> None:
    monkeypatch.setattr(simulation, "STEP_S", STEP_S)
    monkeypatch.setattr(simulation, "TOKEN_S", TOKEN_S)

    async def scenario(clock: VirtualClock) -> None:
        async with running_fleet(1, clock, tmp_path, num_decode=1, num_slots=NUM_SLOTS) as fleet:
            per_s, rng = await capacity_per_s(fleet), random.Random(1)
            answered: list[float] = []
            refusals: list[BatonError] = []

            async def one() -> None:
                try:
                    await fleet.ask("hi", max_tokens=MAX_TOKENS, first_token_s=first_token_s)
                    answered.append(clock.now())
                except BatonError as error:
                    refusals.append(error)

            began = clock.now()
            async with asyncio.TaskGroup() as tasks:
                while clock.now() < began + 20:
                    await asyncio.sleep(rng.expovariate(3 * per_s))
                    tasks.create_task(one())
            in_time = [at for at in answered if began + 5 <= at < began + 20]
            assert len(in_time) >= 0.9 * 15 * per_s
            assert {error.reason for error in refusals} <= {"overloaded"}
            assert all(error.retry_after_s >= 1 for error in refusals)
            assert bool(refusals) == (first_token_s is not None)

    clock = VirtualClock()
    run_virtual(scenario(clock), clock)

"""Short prompts of a quiet tenant beside a neighbour whose long ones fill the prefill worker."""

import asyncio
import os
import random
from pathlib import Path

from baton.testing.virtual_clock import VirtualClock, run_virtual
from tests.simulation.fleet import STEP_S, TOKEN_S, Answer, Fleet, running_fleet

IS_LONG = bool(os.environ.get("BATON_TEST_LONG"))
SECONDS, BEGIN = (120, 10) if IS_LONG else (20, 8)
# Tokens are bytes here. A long prompt takes 0.2 s, and a step of the worker up to 0.4 s.
LONG, SHORT = "l" * 1000, "s" * 20
LONG_S = STEP_S + TOKEN_S * len(LONG)
QUIET_PER_S = 4.0


class FirstToken(Answer):
    """Notes when its first token came."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock
        self.came_at = 0.0

    def take(self, batch: list) -> None:
        self.came_at = self.came_at or self._clock.now()
        super().take(batch)


async def first_tokens_s(fleet: Fleet, clock: VirtualClock) -> list[float]:
    """The quiet tenant's times to first token, while more long prompts come than can be read."""
    keys = {tenant: await fleet.new_key(tenant) for tenant in ("quiet", "loud")}
    rng, times, began = random.Random(1), [], clock.now()

    async def ask(tenant: str, text: str) -> None:
        answer, asked_at = FirstToken(clock), clock.now()
        await fleet.ask(text, answer, api_key=keys[tenant], max_tokens=2)
        if tenant == "quiet" and asked_at > began + BEGIN:
            times.append(answer.came_at - asked_at)

    async with asyncio.TaskGroup() as tasks:

        async def send(tenant: str, per_s: float, text: str) -> None:
            number = 0
            while clock.now() < began + SECONDS:
                await asyncio.sleep(rng.expovariate(per_s))
                number += 1
                tasks.create_task(ask(tenant, f"{number}{text}"))

        tasks.create_task(send("quiet", QUIET_PER_S, SHORT))
        tasks.create_task(send("loud", 1.1 / LONG_S, LONG))
    return times


def test_a_short_prompt_waits_for_no_more_than_two_short_steps(tmp_path: Path) -> None:
    """One that runs, and its own, in which the rest of another prompt may be."""

    async def scenario(clock: VirtualClock) -> None:
        async with running_fleet(1, clock, tmp_path, num_decode=1) as fleet:
            times = sorted(await first_tokens_s(fleet, clock))
            assert len(times) > 2 * (SECONDS - BEGIN)
            assert times[int(0.99 * (len(times) - 1))] <= 0.25

    clock = VirtualClock()
    run_virtual(scenario(clock), clock)

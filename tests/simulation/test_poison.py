"""Requests that kill every core they run on: two die, then nobody more; everybody else finishes."""

import asyncio
import os
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from baton.engine.batch import StepBatch, StepResult
from baton.testing.virtual_clock import VirtualClock, run_virtual
from baton.wire.failures import BatonError
from tests.simulation.fleet import Fleet, Worker, running_fleet

NUM_SEEDS = 60 if os.environ.get("BATON_TEST_LONG") else 6
RESTART_S = 4.0
POISON = "~~~~"


class PoisonedRunner:
    """Ends its core in a step that computes four tildes in a row."""

    def __init__(self, inner: Any, tilde: int, die: Callable[[], None]) -> None:
        self._inner = inner
        self._tilde = tilde
        self._die = die

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def run(self, batch: StepBatch) -> StepResult:
        is_tilde = batch.token_ids == self._tilde
        if np.convolve(is_tilde, np.ones(4)).max() == 4:
            self._die()
        return self._inner.run(batch)


class PoisonedFleet:
    """A fleet whose workers die of POISON, and come back after a while."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.deaths: list[tuple[str, ...]] = []  # who ran in the last step of each
        self._tilde = fleet._detokenizer.token_to_id("~")
        for worker in fleet.workers.values():
            self._poison(worker)

    async def ask(self, text: str, **fields: Any) -> str:
        """The answer's text, or the reason of its failure."""
        try:
            return (await self.fleet.ask(text, **fields)).texts[0]
        except BatonError as error:
            return error.reason

    def _poison(self, worker: Worker) -> None:
        die = lambda: self._end(worker)  # noqa: E731
        worker.engine.runner = PoisonedRunner(worker.engine.runner, self._tilde, die)

    def _end(self, worker: Worker) -> None:
        self.fleet.kill(worker.endpoint)
        self.deaths.append(worker.client.progress().request_ids)
        self.fleet._run(self._restart(worker))

    async def _restart(self, dead: Worker) -> None:
        await asyncio.sleep(RESTART_S)
        self.fleet.start_worker(dead.name, dead.endpoint)
        while dead.endpoint not in self.fleet.workers:
            await asyncio.sleep(0)
        self._poison(self.fleet.workers[dead.endpoint])


def simulated(
    tmp_path: Path,
    scenario: Callable[[PoisonedFleet], Coroutine[Any, Any, None]],
    seed: int = 1,
    **sizes: int,
) -> None:
    async def main(clock: VirtualClock) -> None:
        async with running_fleet(seed, clock, tmp_path, **sizes) as fleet:
            await scenario(PoisonedFleet(fleet))
            await asyncio.sleep(2 * RESTART_S)

    clock = VirtualClock()
    run_virtual(main(clock), clock)


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
@pytest.mark.parametrize("num_prefill", [3, 0])
def test_a_poison_request_ends_two_cores_and_everybody_else_finishes(
    num_prefill: int, seed: int, tmp_path: Path
) -> None:
    """Without prefill workers the prompts are computed among the decodes of everybody else."""

    async def scenario(poisoned: PoisonedFleet) -> None:
        fleet, rng = poisoned.fleet, random.Random(seed)

        async def mate(number: int) -> None:
            await asyncio.sleep(rng.uniform(0, 0.6))
            request_id, text = f"mate-{number}", "x" * rng.randint(1, 400)
            max_tokens = rng.randint(1, 80)
            got = await poisoned.ask(
                text, max_tokens=max_tokens, seed=number, request_id=request_id
            )
            assert got == fleet.expected(request_id, max_tokens, number), request_id

        async def poison() -> None:
            await asyncio.sleep(0.3)
            got = await poisoned.ask(POISON, max_tokens=5, request_id="poison")
            assert got == "request_quarantined"
            began_s = fleet.clock.now()
            for number in range(3):
                repeat = await poisoned.ask(POISON, max_tokens=5, request_id=f"repeat-{number}")
                assert repeat == "request_quarantined"
            assert fleet.clock.now() - began_s < 0.015

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(poison())
            for number in range(16):
                tasks.create_task(mate(number))
        assert len(poisoned.deaths) == 2
        assert all("poison" in names for names in poisoned.deaths)
        assert poisoned.deaths[1] == ("poison",), "the second time nobody else can be named"

    simulated(tmp_path, scenario, seed, num_prefill=num_prefill, num_decode=3)


def test_after_ten_minutes_it_may_try_again(tmp_path: Path) -> None:
    async def scenario(poisoned: PoisonedFleet) -> None:
        assert await poisoned.ask(POISON, max_tokens=5) == "request_quarantined"
        await asyncio.sleep(601)
        assert await poisoned.ask(POISON, max_tokens=5) == "request_quarantined"
        assert len(poisoned.deaths) == 4

    simulated(tmp_path, scenario, num_prefill=3)

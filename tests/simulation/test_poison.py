"""Requests that kill every core they run on: two die, then nobody more; everybody else finishes."""

import asyncio
import os
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from baton.engine.protocol.batch import StepBatch, StepResult
from baton.testing.virtual_clock import VirtualClock, run_virtual
from baton.wire.failures import BatonError
from services.router.fleet import quarantine
from tests.simulation.fleet import Fleet, Worker, running_fleet

NUM_SEEDS = 60 if os.environ.get("BATON_TEST_LONG") else 6
RESTART_S = 4.0
POISON = "~~~~"
NUM_GATEWAYS = 4
MAX_HEARD_S = 0.1


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
        self.deaths_s: list[float] = []
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
        self.deaths_s.append(self.fleet.clock.now())
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


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_every_gateway_hears_of_a_second_death_within_100_ms(seed: int, tmp_path: Path) -> None:
    """Each watches the active router, as any gateway does, and began to at a time of its own."""

    async def scenario(poisoned: PoisonedFleet) -> None:
        fleet, rng = poisoned.fleet, random.Random(seed)

        async def heard_s() -> float:
            await asyncio.sleep(rng.uniform(0, MAX_HEARD_S))
            async for view in fleet.router.watch_admission(takes_deltas=True):
                if view.quarantined:
                    return fleet.clock.now()
            raise AssertionError("the router has stopped")

        async with asyncio.TaskGroup() as tasks:
            watching = [tasks.create_task(heard_s()) for _ in range(NUM_GATEWAYS)]
            assert await poisoned.ask(POISON, max_tokens=5) == "request_quarantined"
        second_s = poisoned.deaths_s[1]
        assert max(task.result() for task in watching) - second_s <= MAX_HEARD_S

    simulated(tmp_path, scenario, seed, num_prefill=0, num_decode=4)


@pytest.mark.parametrize("seed", range(NUM_SEEDS // 2))
def test_routers_that_die_in_turn_cost_no_third_core(seed: int, tmp_path: Path) -> None:
    """Each repeat meets a router that has heard of no death itself."""

    async def scenario(poisoned: PoisonedFleet) -> None:
        fleet, rng = poisoned.fleet, random.Random(seed)
        assert await poisoned.ask(POISON, max_tokens=5) == "request_quarantined"
        for name in [*fleet.routers, *fleet.routers]:
            await asyncio.sleep(rng.uniform(0.2, 2 * RESTART_S))
            fleet.kill_router(name)
            assert await poisoned.ask(POISON, max_tokens=5) == "request_quarantined"
            assert await poisoned.ask("x", max_tokens=5) != "request_quarantined"
            await asyncio.sleep(rng.uniform(0, 1))
            fleet.start_router(name)
            assert await poisoned.ask(POISON, max_tokens=5) == "request_quarantined"
            await asyncio.sleep(1)
        assert len(poisoned.deaths) == 2

    simulated(tmp_path, scenario, seed, num_prefill=0, num_decode=4, num_routers=2)


@pytest.mark.parametrize("seed", range(NUM_SEEDS // 2))
def test_a_router_that_dies_between_two_deaths_costs_no_third_core(
    seed: int, tmp_path: Path
) -> None:
    async def scenario(poisoned: PoisonedFleet) -> None:
        fleet = poisoned.fleet

        async def kill_the_router_that_heard_of_it() -> None:
            while not poisoned.deaths:
                await asyncio.sleep(0.001)
            await asyncio.sleep(random.Random(seed).uniform(0, 0.05))
            fleet.kill_router(max(fleet.routers, key=lambda name: len(fleet.routers[name].picks)))

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(kill_the_router_that_heard_of_it())
            assert await poisoned.ask(POISON, max_tokens=5) == "request_quarantined"
        assert await poisoned.ask(POISON, max_tokens=5) == "request_quarantined"
        assert len(poisoned.deaths) == 2

    simulated(tmp_path, scenario, seed, num_prefill=0, num_decode=4, num_routers=2)


def test_after_its_time_it_may_try_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "QUARANTINE_S", 20.0)

    async def scenario(poisoned: PoisonedFleet) -> None:
        assert await poisoned.ask(POISON, max_tokens=5) == "request_quarantined"
        await asyncio.sleep(19)
        assert await poisoned.ask(POISON, max_tokens=5) == "request_quarantined"
        assert len(poisoned.deaths) == 2
        await asyncio.sleep(2)
        assert await poisoned.ask(POISON, max_tokens=5) == "request_quarantined"
        assert len(poisoned.deaths) == 4

    simulated(tmp_path, scenario, num_prefill=3, num_routers=2)

"""Workers that stand still are found in time; workers that are merely full never are."""

import asyncio
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from baton.engine.protocol.batch import StepBatch
from baton.engine.step.engine import Engine, EngineConfig
from baton.testing.engine_driver import add_sequence
from baton.testing.fake_runner import FakeRunner
from baton.testing.local_client import LocalEngineClient
from baton.testing.virtual_clock import VirtualClock, run_virtual
from baton.worker.core_watch import CoreWatch
from tests.simulation.fleet import Fleet, running_fleet

IS_LONG = bool(os.environ.get("BATON_TEST_LONG"))
BUSY_S, IDLE_S = 3.0, 8.0
PREFILL, DECODE = "sim:1", "sim:3"  # of two prefill and two decode workers


def state_of(fleet: Fleet, endpoint: str) -> Any:
    workers = (w for model in fleet.router.admission().models for w in model.workers)
    return next(worker for worker in workers if worker.endpoint == endpoint)


async def ejected(fleet: Fleet, endpoint: str) -> float:
    """Virtual seconds until the router has ejected this worker."""
    began_s = fleet.clock.now()
    async with asyncio.timeout(60):
        while not state_of(fleet, endpoint).ejected:
            await asyncio.sleep(0.01)
    return fleet.clock.now() - began_s


def simulated(
    tmp_path: Path, scenario: Callable[[Fleet], Any], seed: int = 1, num_prefill: int = 2
) -> None:
    async def main(clock: VirtualClock) -> None:
        async with running_fleet(seed, clock, tmp_path, num_prefill=num_prefill) as fleet:
            # Every worker has stepped: what a step should take is known.
            asking = [fleet.ask(f"{i}" * 40, max_tokens=8, seed=i) for i in range(16)]
            await asyncio.gather(*asking)
            await scenario(fleet)

    clock = VirtualClock()
    run_virtual(main(clock), clock)


@pytest.mark.parametrize("what", ["stop", "stop_core"])
def test_an_idle_worker_that_stands_still_is_found(what: str, tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        await asyncio.sleep(10)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(getattr(fleet, what)(DECODE, 9.0))
            assert await ejected(fleet, DECODE) <= IDLE_S
        await asyncio.sleep(5)
        assert state_of(fleet, DECODE).ready, "it goes on, and is tried again"

    simulated(tmp_path, scenario)


@pytest.mark.parametrize("what", ["stop", "stop_core"])
def test_prompts_on_a_prefill_worker_that_stands_still_are_computed_elsewhere(
    what: str, tmp_path: Path
) -> None:
    async def scenario(fleet: Fleet) -> None:
        async def ask(number: int) -> None:
            request_id, text = f"r{number}", f"{number}" * 700
            answer = await fleet.ask(text, max_tokens=3, seed=number, request_id=request_id)
            assert answer.texts[0] == fleet.expected(request_id, 3, number)

        began_s = fleet.clock.now()
        async with asyncio.TaskGroup() as tasks:
            for number in range(8):
                tasks.create_task(ask(number))
            await asyncio.sleep(0.03)
            assert fleet.workers[PREFILL].engine.measure_load().num_running
            tasks.create_task(getattr(fleet, what)(PREFILL, 9.0))
            assert await ejected(fleet, PREFILL) <= BUSY_S
        assert fleet.clock.now() - began_s <= 10

    simulated(tmp_path, scenario)


def test_slow_steps_of_every_length_are_no_stall() -> None:
    """Full batches; now and then a step takes 5 times as long as those before. A quarter of an
    hour meets each length once, the long run's day each a hundred times."""
    hours = 24 if IS_LONG else 0.25

    async def main(clock: VirtualClock) -> None:
        rng = random.Random(5)

        def step_s(batch: StepBatch) -> float:
            usual_s = 0.3 * (1 + (clock.now() // 120) % 7)
            return usual_s * (rng.uniform(2, 5) if rng.random() < 0.02 else 1)

        config = EngineConfig("fake-model", "fake", "1", 64, max_num_seqs=4, max_step_s=None)
        engine = Engine(config, FakeRunner(), clock)
        client = LocalEngineClient(engine, clock, step_s)
        watch = CoreWatch(client, clock)
        stalls: list[bool] = []
        watch.on_change(stalls.append)
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(watch.run())
            seq_id = 0
            while clock.now() < hours * 3600:
                events = await client.events()
                while events.load.num_running + events.load.num_waiting < 8:
                    seq_id += 1
                    client.send(add_sequence(seq_id, range(rng.randint(1, 90)), max_tokens=200))
                    events.load.num_waiting += 1
            watching.cancel()
        assert stalls == []

    clock = VirtualClock()
    run_virtual(main(clock), clock)


def test_a_fleet_at_three_times_its_capacity_ejects_nobody(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        rng = random.Random(7)
        ejections: list[str] = []

        async def watch() -> None:
            while True:
                ejections.extend(e for e in fleet.workers if state_of(fleet, e).ejected)
                await asyncio.sleep(0.05)

        async def ask(number: int) -> None:
            await asyncio.sleep(rng.uniform(0, 20 if IS_LONG else 3))
            text = "x" * rng.randint(1, 900)
            await fleet.ask(text, max_tokens=rng.randint(1, 60), seed=number)

        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(watch())
            asking = [tasks.create_task(ask(number)) for number in range(600 if IS_LONG else 100)]
            await asyncio.gather(*asking)
            watching.cancel()
        assert ejections == []
        assert not any(worker.deps.watch.is_stalled for worker in fleet.workers.values())

    simulated(tmp_path, scenario)

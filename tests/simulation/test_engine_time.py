"""The archive adds up to what the workers did, whatever happened to the requests."""

import asyncio
import os
import random
from pathlib import Path

import pytest

from baton.cli.usage import bill, difference_us
from baton.cli.usage_sums import Period
from baton.testing.virtual_clock import VirtualClock, run_virtual
from tests.simulation.fleet import Answer, Fleet, running_fleet

NUM_SEEDS = 20 if os.environ.get("BATON_TEST_LONG") else 1
TICK_S = 0.001


async def load(fleet: Fleet, rng: random.Random) -> None:
    """Requests of which a third is cancelled, in any phase."""

    async def one(number: int) -> None:
        await asyncio.sleep(rng.uniform(0, 1.5))
        text, max_tokens = "x" * rng.randint(10, 90), rng.randint(20, 120)
        patience_s = rng.uniform(0.02, 0.8) if number % 3 == 0 else 600.0
        try:
            async with asyncio.timeout(patience_s):
                await fleet.ask(text, Answer(), max_tokens=max_tokens, seed=1)
        except TimeoutError:
            return

    async with asyncio.TaskGroup() as tasks:
        for number in range(20):
            tasks.create_task(one(number))


async def trouble(fleet: Fleet) -> None:
    """One decode worker loses its core, another one drains; both come back."""
    await asyncio.sleep(0.7)
    fleet.kill("sim:3")
    await asyncio.sleep(0.2)
    fleet.start_worker("decode-0", "sim:3")
    await asyncio.sleep(0.6)
    await fleet.drain("sim:4", 0.1)
    fleet.start_worker("decode-1", "sim:4")


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_usage_adds_up_to_the_time_of_the_workers(seed: int, tmp_path: Path) -> None:
    usage = tmp_path / "usage"

    async def scenario(clock: VirtualClock) -> None:
        async with running_fleet(
            seed, clock, tmp_path, num_prefill=2, num_blocks=18, usage_dir=usage
        ) as fleet:
            lives = list(fleet.workers.values())
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(load(fleet, random.Random(seed)))
                tasks.create_task(trouble(fleet))
            await asyncio.sleep(0.5)
            lives += [worker for worker in fleet.workers.values() if worker not in lives]
            times = [worker.deps.dispatcher.times for worker in lives]
            known_us = sum(time.busy_us - time.unbilled_us for time in times)
            records = [record.engine for record in fleet.quota.settled]
            billed_us = sum(engine.prefill_us + engine.decode_us for engine in records)
            assert known_us == billed_us, "the bills are exact"
            assert fleet.archives is not None
            archiver, workers = fleet.archives
            assert await archiver.archive_all()
            await fleet.gateway.tell_workers()
            await workers.write_all()

    clock = VirtualClock()
    run_virtual(scenario(clock), clock)
    rows, fleet_time = bill([usage], Period(), ("tenant",))
    [of_tenant] = [row for row in rows if row["line"] == "usage"]
    assert sum(int(row["engine_us"]) for row in rows) == fleet_time.uptime_us
    assert abs(difference_us(rows)) <= fleet_time.uptime_us / 100
    wasted = [of_tenant[f"{cause}_us"] for cause in ("cancelled", "migrated", "preempted")]
    assert all(wasted) or seed, wasted


async def integrate(fleet: Fleet, held: list[float]) -> None:
    """Add up what the pools' blocks are held for, in bytes times milliseconds, until cancelled."""
    while True:
        for worker in fleet.workers.values():
            num_references = worker.engine._state.manager.num_references
            held[0] += num_references * worker.engine.info.kv_spec.row_bytes * TICK_S * 1000
        await asyncio.sleep(TICK_S)


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_blocks_on_bills_are_those_that_were_held(seed: int, tmp_path: Path) -> None:
    """Also those of requests that are cancelled in a handoff, or between two steps."""

    async def scenario(clock: VirtualClock) -> None:
        held = [0.0]
        async with running_fleet(seed, clock, tmp_path, num_prefill=2, num_blocks=40) as fleet:
            async with asyncio.TaskGroup() as tasks:
                integrating = tasks.create_task(integrate(fleet, held))
                await load(fleet, random.Random(seed))
                await asyncio.sleep(0.5)
                integrating.cancel()
            billed = sum(record.engine.kv_byte_ms for record in fleet.quota.settled)
            assert any(record.engine.cancelled_us for record in fleet.quota.settled) or seed
            assert billed == pytest.approx(held[0], rel=0.01)

    clock = VirtualClock()
    run_virtual(scenario(clock), clock)

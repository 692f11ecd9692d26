"""Connections between the gateway and decode workers break, in the whole fleet on virtual time: a
pause for the clients, and for the workers nothing at all."""

import asyncio
import os
import random

import pytest

from baton.testing.virtual_clock import VirtualClock, run_virtual
from services.tokenizer.served_model import ServedModel
from tests.simulation.fleet import Answer, Fleet, fleet_of, load_sim_model

NUM_SEEDS = 200 if os.environ.get("BATON_TEST_LONG") else 10
NUM_REQUESTS = 16


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    return run_virtual(load_sim_model(tmp_path_factory.mktemp("model")))


async def one_request(fleet: Fleet, rng: random.Random, number: int) -> bool:
    """A client that gets all of its answer, or leaves (False)."""
    await asyncio.sleep(rng.uniform(0, 2))
    request_id, max_tokens = f"r{number}", rng.randint(1, 200)
    num_choices = rng.choice([1, 1, 2])
    answer = Answer(pause_s=lambda: 0.05 if number % 5 == 0 else 0.0)
    patience_s = rng.uniform(0, 1) if number % 4 == 0 else 60.0
    try:
        async with asyncio.timeout(patience_s):
            await fleet.ask(
                "x" * rng.randint(1, 300), answer,
                max_tokens=max_tokens, seed=1, n=num_choices, request_id=request_id,
            )  # fmt: skip
    except TimeoutError:
        assert patience_s < 60, "a request was never answered"
        return False
    for choice in range(num_choices):
        assert answer.texts[choice] == fleet.expected(request_id, max_tokens, 1, choice)
    assert answer.usage.num_output_tokens == max_tokens * num_choices
    return True


async def cut_all(fleet: Fleet, rng: random.Random) -> int:
    """Cut what the gateway has open to decode workers, again and again; how many that were."""
    num_cut = 0
    for _ in range(12):
        await asyncio.sleep(rng.uniform(0.02, 0.3))
        for link in fleet.network.links("gateway"):
            if link.kind == "attempts":
                link.cut()
                num_cut += 1
    return num_cut


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_cut_connections_cost_no_second_attempt_and_leave_nothing_behind(
    seed: int, model: ServedModel
) -> None:
    async def scenario(clock: VirtualClock) -> None:
        rng = random.Random(seed)
        delay_s = rng.choice([0.0, 0.002, 0.02])
        async with fleet_of(seed, clock, model, max_delay_s=delay_s) as fleet:
            async with asyncio.TaskGroup() as tasks:
                cutting = tasks.create_task(cut_all(fleet, rng))
                asking = [
                    tasks.create_task(one_request(fleet, rng, number))
                    for number in range(NUM_REQUESTS)
                ]
            assert cutting.result() > 0, "nothing was cut"
            await fleet.quiet()
            records = {record.request_id: record for record in fleet.quota.settled}
            assert all(record.num_attempts <= 1 for record in records.values())
            assert len(fleet.local_router.picks) <= len(records)
            for number, task in enumerate(asking):
                if task.result():
                    assert records[f"r{number}"].num_attempts == 1

    clock = VirtualClock()
    run_virtual(scenario(clock), clock)

"""Requests through the whole fleet on virtual time: right tokens, nothing left behind."""

import asyncio
import os
import random
from pathlib import Path

import pytest

from baton.testing.virtual_clock import VirtualClock, run_virtual
from tests.simulation.fleet import Answer, Fleet, running_fleet

NUM_SEEDS = 100 if os.environ.get("BATON_TEST_LONG") else 12


def test_one_token_travels_through_every_service(tmp_path: Path) -> None:
    async def scenario(clock: VirtualClock) -> None:
        async with running_fleet(1, clock, tmp_path) as fleet:
            answer = await fleet.ask("hello", max_tokens=1, seed=5, request_id="r1")
            assert answer.texts[0] == fleet.expected("r1", 1, 5)
            assert answer.finish_reasons == {0: "length"}
            (record,) = fleet.quota.settled
            assert (record.request_id, record.num_output_tokens) == ("r1", 1)
            (pick,) = fleet.local_router.picks
            assert pick.prefill.worker_id == "prefill-0"

    clock = VirtualClock()
    run_virtual(scenario(clock), clock)


def test_a_second_request_reuses_the_blocks_of_the_first(tmp_path: Path) -> None:
    async def scenario(clock: VirtualClock) -> None:
        async with running_fleet(2, clock, tmp_path) as fleet:
            text = "the same long beginning " * 8
            first = await fleet.ask(text + "one", max_tokens=3, seed=1)
            await asyncio.sleep(1)
            second = await fleet.ask(text + "two", max_tokens=3, seed=1, request_id="r2")
            assert first.usage.num_cached_tokens == 0
            assert second.usage.num_cached_tokens >= 160
            assert second.texts[0] == fleet.expected("r2", 3, 1)
            first_pick, second_pick = fleet.local_router.picks
            assert first_pick.decode.worker_id == second_pick.decode.worker_id

    clock = VirtualClock()
    run_virtual(scenario(clock), clock)


def test_a_stream_outlives_the_loss_of_everything_in_redis(tmp_path: Path) -> None:
    async def scenario(clock: VirtualClock) -> None:
        async with running_fleet(4, clock, tmp_path) as fleet, asyncio.TaskGroup() as tasks:
            asking = fleet.ask("hello", max_tokens=1500, seed=5, request_id="r1")
            request = tasks.create_task(asking)
            started = clock.now()
            await asyncio.sleep(1)
            await fleet.lose_redis_data()
            answer = await request
            assert clock.now() - started > 6, "no renewal came between the loss and the end"
            assert answer.texts[0] == fleet.expected("r1", 1500, 5)
            assert [record.num_output_tokens for record in fleet.quota.settled] == [1500]

    clock = VirtualClock()
    run_virtual(scenario(clock), clock)


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_a_dead_worker_costs_no_answer(seed: int, tmp_path: Path) -> None:
    endpoint = f"sim:{seed % 4 + 1}"  # two prefill workers, then two decode workers

    async def scenario(clock: VirtualClock) -> None:
        async with running_fleet(seed, clock, tmp_path, num_prefill=2) as fleet:
            rng = random.Random(seed)

            async def one(number: int) -> None:
                await asyncio.sleep(rng.uniform(0, 2))
                request_id, max_tokens = f"r{number}", rng.randint(1, 60)
                text = "x" * rng.randint(1, 300)
                answer = await fleet.ask(text, max_tokens=max_tokens, seed=1, request_id=request_id)
                assert answer.texts[0] == fleet.expected(request_id, max_tokens, 1)

            async with asyncio.TaskGroup() as tasks:
                for number in range(30):
                    tasks.create_task(one(number))
                await asyncio.sleep(rng.uniform(0.2, 1.8))
                fleet.kill(endpoint)

    clock = VirtualClock()
    run_virtual(scenario(clock), clock)


async def mixed_load(fleet: Fleet, num_requests: int) -> list[tuple]:
    """Random requests at random times, a third of which are cancelled; returns what they got."""
    rng = random.Random(fleet.rng.random())
    prefixes = [f"shared prefix number {n} " * rng.randint(1, 30) for n in range(4)]
    results: list[tuple] = []

    async def one(number: int) -> None:
        await asyncio.sleep(rng.uniform(0, 2))
        request_id, seed = f"r{number}", rng.randint(0, 3)
        max_tokens, num_choices = rng.randint(1, 60), rng.choice([1, 1, 1, 2])
        slow = rng.random() < 0.2
        answer = Answer(pause_s=lambda: rng.uniform(0, 0.2) if slow else 0.0)
        text = rng.choice(prefixes) + "x" * rng.randint(0, 200)
        asking = fleet.ask(
            text, answer, max_tokens=max_tokens, seed=seed, n=num_choices, request_id=request_id
        )
        patience_s = rng.uniform(0, 0.3) if number % 3 == 0 else 600.0
        try:
            async with asyncio.timeout(patience_s):
                await asking
        except TimeoutError:
            results.append((request_id, "left"))
            return
        texts = [answer.texts[choice] for choice in range(num_choices)]
        expected = [
            fleet.expected(request_id, max_tokens, seed, choice) for choice in range(num_choices)
        ]
        assert texts == expected, f"{request_id}: wrong text"
        assert answer.usage.num_output_tokens == max_tokens * num_choices
        results.append((request_id, *texts))

    async with asyncio.TaskGroup() as tasks:
        for number in range(num_requests):
            tasks.create_task(one(number))
    return results


def run_seed(seed: int, folder: Path, num_blocks: int) -> list[tuple]:
    async def scenario(clock: VirtualClock) -> list[tuple]:
        async with running_fleet(
            seed, clock, folder, num_prefill=2, num_decode=2, num_blocks=num_blocks
        ) as fleet:
            results = await mixed_load(fleet, num_requests=25)
            billed = [record.request_id for record in fleet.quota.settled]
            assert len(billed) == len(set(billed)), "a request was billed twice"
            finished = {result[0] for result in results if result[1] != "left"}
            assert finished <= set(billed)
            return results

    clock = VirtualClock()
    return run_virtual(scenario(clock), clock)


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_any_schedule_gives_right_text_one_usage_record_and_no_leak(
    seed: int, tmp_path: Path
) -> None:
    results = run_seed(seed, tmp_path, num_blocks=512 if seed % 2 else 160)
    assert any(result[1] != "left" for result in results)
    assert any(result[1] == "left" for result in results)


def test_the_same_seed_gives_the_same_run(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    assert run_seed(3, folders[0], 512) == run_seed(3, folders[1], 512)

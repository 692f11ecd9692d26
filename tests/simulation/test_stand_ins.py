"""All decode workers go at once: prefill workers write the answers until they are back."""

import asyncio
import os
from pathlib import Path

import pytest

from baton.testing.virtual_clock import VirtualClock, run_virtual
from tests.simulation.fleet import Answer, Fleet, running_fleet

NUM_SEEDS = 60 if os.environ.get("BATON_TEST_LONG") else 6
MAX_TOKENS = 120
FAULTS = ("kill", "kill_process", "drain")


def decode_workers(fleet: Fleet) -> dict[str, str]:
    """The names of the decode workers that run, by endpoint."""
    workers = fleet.workers.items()
    return {endpoint: each.name for endpoint, each in workers if each.name.startswith("decode")}


async def strike(fleet: Fleet, fault: str) -> dict[str, str]:
    gone = decode_workers(fleet)
    for endpoint in gone:
        if fault == "drain":
            await fleet.drain(endpoint, cap_s=0.0)
        else:
            getattr(fleet, fault)(endpoint)
    assert gone
    assert not decode_workers(fleet)
    return gone


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_streams_of_a_decode_pool_that_is_gone_go_on_at_prefill_workers(
    seed: int, fault: str, tmp_path: Path
) -> None:
    async def scenario(clock: VirtualClock) -> None:
        async with running_fleet(seed, clock, tmp_path, num_prefill=2) as fleet:
            answers = [Answer() for _ in range(4)]
            async with asyncio.TaskGroup() as tasks:
                for number, answer in enumerate(answers):
                    fields = {"max_tokens": MAX_TOKENS, "seed": number, "temperature": 1.0}
                    tasks.create_task(
                        fleet.ask("a story " * 9, answer, request_id=f"r{number}", **fields)
                    )
                await asyncio.sleep(0.3 + 0.05 * seed)
                assert any(answer.texts.get(0) for answer in answers), "no stream had begun"
                gone = await strike(fleet, fault)
                began = clock.now()
                while not all(answer.finish_reasons for answer in answers):
                    await asyncio.sleep(0.05)
                assert clock.now() - began < 5, "they waited for a decode worker"
            for number, answer in enumerate(answers):
                assert answer.texts[0] == fleet.expected(f"r{number}", MAX_TOKENS, number)
            last = {pick.decode.worker_id for pick in fleet.local_router.picks[-len(answers) :]}
            assert last <= {"prefill-0", "prefill-1"}
            for endpoint, name in gone.items():
                fleet.start_worker(name, endpoint)
            await asyncio.sleep(1)
            await fleet.ask("hello", max_tokens=3, seed=1, request_id="later")
            pick = fleet.local_router.picks[-1]
            assert pick.decode.worker_id in gone.values()
            assert pick.prefill.worker_id.startswith("prefill")
            await fleet.quiet()

    clock = VirtualClock()
    run_virtual(scenario(clock), clock)


def test_a_stand_in_that_dies_leaves_its_streams_to_another_one(tmp_path: Path) -> None:
    async def scenario(clock: VirtualClock) -> None:
        async with running_fleet(9, clock, tmp_path, num_prefill=2) as fleet:
            await strike(fleet, "kill_process")
            answer = Answer()
            asking = fleet.ask("a story", answer, request_id="r1", max_tokens=300, seed=3)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(asking)
                while not answer.texts.get(0):
                    await asyncio.sleep(0.01)
                first = fleet.local_router.picks[-1].decode
                fleet.kill(first.endpoint)
            assert answer.texts[0] == fleet.expected("r1", 300, 3)
            second = fleet.local_router.picks[-1].decode
            assert {first.worker_id, second.worker_id} == {"prefill-0", "prefill-1"}
            await fleet.quiet()

    clock = VirtualClock()
    run_virtual(scenario(clock), clock)

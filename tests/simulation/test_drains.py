"""A decode worker that drains: gateways take away in time what it would have to cut, and nothing
else."""

import asyncio

import pytest

from baton.testing.virtual_clock import VirtualClock, run_virtual
from services.tokenizer.served_model import ServedModel
from tests.simulation.fleet import Answer, Fleet, fleet_of, load_sim_model

# A step takes 5 ms and more.
SHORT, LONG = 100, 1500
NUM_EACH = 12
CAP_S = 4.0
PREFILL, DRAINED = "sim:1", "sim:2"  # of one prefill and two decode workers


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    return run_virtual(load_sim_model(tmp_path_factory.mktemp("model")))


async def ask(fleet: Fleet, number: int, max_tokens: int) -> None:
    request_id, answer = f"r{number}", Answer()
    fields = {"max_tokens": max_tokens, "seed": number, "request_id": request_id}
    await fleet.ask(f"{number} tells a story", answer, **fields)
    assert answer.texts[0] == fleet.expected(request_id, max_tokens, number)
    assert answer.usage.num_output_tokens == max_tokens


def test_streams_that_a_draining_worker_would_cut_move_early_and_a_few_at_a_time(
    model: ServedModel,
) -> None:
    clock = VirtualClock()

    async def scenario() -> None:
        sizes = {"num_prefill": 1, "num_decode": 2, "num_blocks": 2048}
        async with fleet_of(1, clock, model, **sizes) as fleet:
            sizes_of = {f"r{n}": SHORT if n % 2 else LONG for n in range(2 * NUM_EACH)}
            async with asyncio.TaskGroup() as tasks:
                for number, max_tokens in enumerate(sizes_of.values()):
                    tasks.create_task(ask(fleet, number, max_tokens))
                await asyncio.sleep(0.3)
                num_picks, began_s = len(fleet.local_router.picks), clock.now()
                worker = await fleet.drain(DRAINED, cap_s=CAP_S)
                drained_s = clock.now() - began_s
            assert drained_s < CAP_S / 2, "it left as soon as it was empty"
            records = {record.request_id: record for record in fleet.quota.settled}
            num_moved = len(fleet.local_router.picks) - num_picks
            assert 0 < num_moved < NUM_EACH
            for request_id, record in records.items():
                assert record.num_attempts == 1 or sizes_of[request_id] == LONG
                assert record.num_wasted_tokens == 0
            assert sum(record.num_attempts - 1 for record in records.values()) == num_moved
            assert drained_s > 0.02 * num_moved, "all at the same moment"
            worker.check()
            await fleet.quiet()

    run_virtual(scenario(), clock)


def test_streams_that_would_be_cut_go_to_a_prefill_worker_where_no_decode_worker_is_left(
    model: ServedModel,
) -> None:
    clock = VirtualClock()

    async def scenario() -> None:
        sizes = {"num_prefill": 1, "num_decode": 1, "num_blocks": 512}
        async with fleet_of(1, clock, model, **sizes) as fleet:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(ask(fleet, 1, 600))
                await asyncio.sleep(0.3)
                began_s = clock.now()
                await fleet.drain(DRAINED, cap_s=1.0)
                assert clock.now() - began_s < 0.5, "it was cut"
            assert fleet.local_router.picks[-1].decode.endpoint == PREFILL
            (record,) = fleet.quota.settled
            assert (record.num_attempts, record.num_wasted_tokens) == (2, 0)
            await fleet.quiet()

    run_virtual(scenario(), clock)


def test_streams_stay_to_the_end_where_no_other_worker_would_take_them(
    model: ServedModel,
) -> None:
    clock = VirtualClock()

    async def scenario() -> None:
        sizes = {"num_prefill": 1, "num_decode": 1, "num_blocks": 512}
        async with fleet_of(1, clock, model, **sizes) as fleet:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(ask(fleet, 1, 600))
                await asyncio.sleep(0.3)
                # Else it would stand in.
                prefill = fleet.kill_process(PREFILL)
                await asyncio.sleep(0.1)
                began_s = clock.now()
                worker = await fleet.drain(DRAINED, cap_s=1.0)
                assert clock.now() - began_s == pytest.approx(1.0, abs=0.1)
                fleet.start_worker(worker.name, DRAINED)
                fleet.start_worker(prefill.name, PREFILL)
            (record,) = fleet.quota.settled
            assert record.num_attempts == 2
            await fleet.quiet()

    run_virtual(scenario(), clock)

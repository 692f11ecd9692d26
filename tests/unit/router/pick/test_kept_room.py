"""A full fleet has room for tenants with a small share, beside one that would take all."""

import asyncio

import pytest

from baton.testing.virtual_clock import run_virtual
from services.router.pick.kept_room import num_kept
from services.router.queue.fair_line import LOOK_S, Turn
from tests.unit.router.conftest import MODEL, RouterInMemory

SLOTS = 16


@pytest.fixture
def run(clock):
    return lambda scenario: run_virtual(scenario(), clock)


@pytest.mark.parametrize(
    ("num_slots", "kept"), [(8, 0), (79, 0), (80, 1), (511, 1), (512, 2), (100_000, 4)]
)
def test_few_slots_are_kept_and_none_of_a_small_fleet(num_slots: int, kept: int) -> None:
    assert num_kept(num_slots) == kept


@pytest.fixture(params=[5, 20], ids=["5 workers", "20 workers"])
def fleet(request, router):
    """Builds a fleet in which one batch slot or more are free."""

    def build(shares: dict[str, int], num_free: int = 1) -> RouterInMemory:
        """The tenants had as many requests lately."""
        built = router(stale_after_s=3600)
        workers = [built.decode(f"d{number}") for number in range(request.param)]
        for worker in workers:
            worker.register.max_num_seqs = SLOTS
            worker.start(boot_epoch=2)
            worker.load(num_running=SLOTS)
        workers[0].load(num_running=SLOTS - num_free)
        line = built.core._queues._of(MODEL).queue.line
        for tenant, count in shares.items():
            line.charge(Turn(tenant), count)
        return built

    return build


def test_a_tenant_with_a_large_share_leaves_the_last_slot_to_one_with_a_small_share(fleet, run):
    async def scenario() -> None:
        router = fleet({"loud": 20, "quiet": 1})
        await asyncio.sleep(LOOK_S)
        waiting = asyncio.create_task(router.pick("l1", tenant="loud"))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        assert await router.pick("q1", tenant="quiet")
        waiting.cancel()

    run(scenario)


@pytest.mark.parametrize("slots", [SLOTS, 4])
def test_a_full_batch_takes_in_one_request_of_a_quiet_tenant(router, run, slots: int) -> None:
    async def scenario() -> None:
        built = router(stale_after_s=3600)
        worker, _ = built.decode(), built.prefill()
        worker.register.max_num_seqs = slots
        worker.start(boot_epoch=2)
        worker.load(num_running=slots)
        line = built.core._queues._of(MODEL).queue.line
        for tenant, count in (("loud", 20), ("quiet", 1)):
            line.charge(Turn(tenant), count)
        await asyncio.sleep(LOOK_S)
        assert (await built.pick("q1", tenant="quiet")).is_quiet
        waiting = [asyncio.create_task(built.pick(f"{t}2", tenant=t)) for t in ("quiet", "loud")]
        await asyncio.sleep(0.2)
        assert not any(task.done() for task in waiting)
        for task in waiting:
            task.cancel()

    run(scenario)


def test_in_a_large_pool_it_is_taken_in_by_a_batch_that_has_not_taken_one_in(router, run) -> None:
    async def scenario() -> None:
        built = router(stale_after_s=3600)
        built.prefill()
        workers = [built.decode(f"d{number}") for number in range(20)]
        for number, worker in enumerate(workers):
            worker.register.max_num_seqs = SLOTS
            worker.start(boot_epoch=2)
            has_taken = number != 7
            num_free = 80 if has_taken else 60
            worker.load(num_running=SLOTS + has_taken, num_blocks_free=num_free)
        line = built.core._queues._of(MODEL).queue.line
        for tenant, count in (("loud", 20), ("quiet", 1)):
            line.charge(Turn(tenant), count)
        await asyncio.sleep(LOOK_S)
        response = await asyncio.wait_for(built.pick("q1", tenant="quiet"), 1)
        assert response.decode.worker_id == workers[7].register.worker_id

    run(scenario)


def test_several_choices_for_one_prompt_are_not_held_up_for_others(fleet, run):
    async def scenario() -> None:
        router = fleet({"loud": 20, "quiet": 1}, num_free=2)
        await asyncio.sleep(LOOK_S)
        assert await asyncio.wait_for(router.pick("l1", tenant="loud", num_choices=2), 1)

    run(scenario)


def test_without_tenants_with_small_shares_all_slots_are_used(fleet, run):
    async def scenario() -> None:
        router = fleet({"one": 20, "other": 20})
        await asyncio.sleep(LOOK_S)
        assert await asyncio.wait_for(router.pick("r1", tenant="one"), 1)

    run(scenario)


def test_a_router_that_hears_no_worker_holds_no_tenant_back(router, run):
    async def scenario() -> None:
        built = router(isolation_s=30)
        for worker in (built.decode(), built.decode("d1")):
            built.core.lose(worker.endpoint)
        line = built.core._queues._of(MODEL).queue.line
        for tenant, count in (("loud", 20), ("quiet", 1)):
            line.charge(Turn(tenant), count)
        await asyncio.sleep(LOOK_S)
        assert await asyncio.wait_for(built.pick("l1", tenant="loud"), 1)

    run(scenario)

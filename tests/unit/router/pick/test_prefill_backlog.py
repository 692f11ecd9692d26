"""Prompts wait in the router's line while every prefill worker has enough of them."""

import asyncio

import pytest

from baton.testing.virtual_clock import run_virtual
from tests.unit.router.conftest import WorkerInMemory

RATE = 100.0


@pytest.fixture
def run(clock):
    return lambda scenario: run_virtual(scenario(), clock)


@pytest.fixture(params=[2, 20], ids=["2 workers", "20 workers"])
def fleet(request, router):
    """Builds a router with one decode worker and prefill workers that have so many tokens."""

    def build(queued: int, rate: float = RATE):
        built = router(stale_after_s=3600)
        decode = built.decode()
        decode.register.max_num_seqs = 1000
        decode.register.num_blocks = 100_000
        decode.start(boot_epoch=2)
        decode.load(num_blocks_free=100_000)
        workers = [built.prefill(f"p{number}") for number in range(request.param)]
        for worker in workers:
            report(worker, queued, rate)
        return built, workers

    return build


def report(worker: WorkerInMemory, queued: int, rate: float = RATE) -> None:
    worker.load(num_queued_prefill_tokens=queued, prefill_tokens_per_s=rate)


def test_a_prompt_waits_until_a_worker_has_less_than_a_second_of_prompts(fleet, run) -> None:
    async def scenario() -> None:
        router, workers = fleet(queued=150)
        waiting = asyncio.create_task(router.pick())
        await asyncio.sleep(0.5)
        assert not waiting.done()
        report(workers[1], 90)
        assert (await waiting).prefill.worker_id == "p1"

    run(scenario)


def test_prompts_wait_in_the_order_of_their_tenants_service(fleet, run) -> None:
    async def scenario() -> None:
        router, workers = fleet(queued=150)
        loud = [asyncio.create_task(router.pick(f"l{n}", tenant="loud")) for n in range(5)]
        await asyncio.sleep(0.5)
        report(workers[0], 90)
        await asyncio.wait(loud, return_when=asyncio.FIRST_COMPLETED)
        quiet = asyncio.create_task(router.pick("q", tenant="quiet"))
        await asyncio.sleep(0.5)
        report(workers[1], 90)
        await quiet
        assert sum(task.done() for task in loud) == 1
        for task in loud:
            task.cancel()

    run(scenario)


def test_a_loud_tenant_stops_earlier_beside_a_quiet_one_whose_prompts_go_first(fleet, run) -> None:
    async def scenario() -> None:
        router, workers = fleet(queued=0)
        for number in range(20):
            assert not (await router.pick(f"l{number}", tenant="loud")).is_quiet
        await router.pick("q0", tenant="quiet")
        await asyncio.sleep(2)
        for worker in workers:
            report(worker, 50)
        loud = asyncio.create_task(router.pick("l", tenant="loud"))
        await asyncio.sleep(0.5)
        assert not loud.done()
        assert (await router.pick("q", tenant="quiet")).is_quiet
        report(workers[0], 20)
        await loud

    run(scenario)


def test_a_rate_that_was_not_measured_holds_up_nobody(fleet, run) -> None:
    async def scenario() -> None:
        router, _ = fleet(queued=10**6, rate=0.0)
        assert await router.pick()

    run(scenario)


def test_a_stream_that_has_begun_is_not_held_up(fleet, run) -> None:
    async def scenario() -> None:
        router, _ = fleet(queued=150)
        assert await router.pick(has_begun=True)

    run(scenario)

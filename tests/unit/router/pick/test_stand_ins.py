"""Prefill workers get whole requests while no decode worker of their model can take one."""

import asyncio
from collections.abc import Callable

import pytest

from baton.testing.virtual_clock import run_virtual
from baton.wire.failures import Unavailable
from services.router.pick.shortlist import MAX_PLAIN
from tests.unit.router.conftest import RouterInMemory, WorkerInMemory

LONG_PROMPT = 1000


@pytest.fixture
def run(clock):
    return lambda scenario: run_virtual(scenario(), clock)


def stand_in(router: RouterInMemory, name: str = "p0") -> WorkerInMemory:
    """A prefill worker of this version."""
    worker = router.prefill(name)
    worker.register.stands_in = True
    worker.start(boot_epoch=2)
    return worker


def lose(router: RouterInMemory, worker: WorkerInMemory) -> None:
    router.core.lose(worker.endpoint)


def drain(router: RouterInMemory, worker: WorkerInMemory) -> None:
    worker.send(draining=True)


@pytest.mark.parametrize("take_away", [lose, drain])
def test_a_prefill_worker_stands_in_for_a_decode_pool_that_is_gone(
    router, run, take_away: Callable[..., None]
) -> None:
    async def scenario() -> None:
        r = router()
        decodes = [r.decode("d0"), r.decode("d1")]
        stand_in(r)
        assert (await r.pick("r1", num_prompt_tokens=LONG_PROMPT)).decode.worker_id != "p0"
        take_away(r, decodes[0])
        assert (await r.pick("r2", num_prompt_tokens=LONG_PROMPT)).decode.worker_id == "d1"
        take_away(r, decodes[1])
        picked = await r.pick("r3", num_prompt_tokens=LONG_PROMPT)
        assert picked.decode.worker_id == "p0"
        assert not picked.HasField("prefill")

    run(scenario)


def test_it_gets_no_request_once_a_decode_worker_is_back(router, run) -> None:
    async def scenario() -> None:
        r = router()
        decode = r.decode("d0")
        stand_in(r)
        r.core.lose(decode.endpoint)
        assert (await r.pick("r1")).decode.worker_id == "p0"
        decode.start(boot_epoch=2)
        picked = await r.pick("r2")
        assert (picked.decode.worker_id, picked.prefill.worker_id) == ("d0", "p0")

    run(scenario)


def test_a_pool_that_has_never_been_there_is_stood_in_for(router, run) -> None:
    async def scenario() -> None:
        r = router()
        stand_in(r)
        assert (await r.pick("r1")).decode.worker_id == "p0"

    run(scenario)


def test_one_that_refused_the_request_is_asked_after_the_others(router, run) -> None:
    async def scenario() -> None:
        r = router()
        stand_in(r, "p0")
        stand_in(r, "p1")
        for number in range(8):
            picked = await r.pick(f"r{number}", exclude_worker_ids=["p0"])
            assert picked.decode.worker_id == "p1"
            r.core._fleet.end_leases(f"r{number}")

    run(scenario)


def test_a_prefill_worker_of_an_earlier_version_is_left_out(router, run) -> None:
    async def scenario() -> None:
        r = router(no_worker_wait_s=0.5)
        r.prefill("old")
        with pytest.raises(Unavailable, match="no worker is ready"):
            await r.pick("r1")
        stand_in(r, "new")
        for number in range(2, 6):
            assert (await r.pick(f"r{number}")).decode.worker_id == "new"

    run(scenario)


def test_in_large_pools_as_in_small_ones(router, run) -> None:
    async def scenario() -> None:
        r = router()
        decodes = [r.decode(f"d{number}") for number in range(MAX_PLAIN + 1)]
        names = {f"p{number}" for number in range(MAX_PLAIN + 1)}
        for name in sorted(names):
            stand_in(r, name)
        r.prefill("old")
        for worker in decodes[1:]:
            r.core.lose(worker.endpoint)
        assert (await r.pick("r1", num_prompt_tokens=LONG_PROMPT)).decode.worker_id == "d0"
        r.core.lose(decodes[0].endpoint)
        picked = {
            (await r.pick(f"s{number}", num_prompt_tokens=LONG_PROMPT)).decode.worker_id
            for number in range(MAX_PLAIN)
        }
        assert picked <= names
        assert len(picked) == MAX_PLAIN

    run(scenario)


def test_its_room_counts_as_that_of_a_decode_worker(router, run) -> None:
    """Its four batch slots are taken: the fifth request waits for one."""

    async def scenario() -> None:
        r = router()
        worker = stand_in(r)
        for number in range(4):
            await r.pick(f"r{number}")
        worker.load("r0", "r1", "r2", "r3", num_running=4)
        waiting = asyncio.create_task(r.pick("r4"))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        worker.load("r0", "r1", "r2", "r3", num_running=3)
        assert (await waiting).decode.worker_id == "p0"

    run(scenario)


def test_what_is_too_large_for_it_waits_for_a_decode_worker(router, run) -> None:
    async def scenario() -> None:
        r = router(no_worker_wait_s=2)
        decode = r.decode("d0")
        decode.register.num_blocks = 1000
        decode.start(boot_epoch=2)
        worker = stand_in(r)
        r.core.lose(decode.endpoint)
        waiting = asyncio.create_task(r.pick("r1", num_prompt_tokens=2000))
        for _ in range(30):
            await asyncio.sleep(0.1)
            worker.load()
        with pytest.raises(Unavailable, match="no worker is ready"):
            await waiting

    run(scenario)


def test_a_router_that_has_just_started_waits_for_decode_workers_that_it_has_not_met(
    router, run, clock
) -> None:
    async def scenario() -> None:
        r = router(workers=("d0:1", "p0:1"), settle_s=5)
        stand_in(r)
        waiting = asyncio.create_task(r.pick("r1"))
        await asyncio.sleep(1.5)
        assert not waiting.done(), "it had met only the prefill worker"
        r.decode("d0")
        assert (await waiting).decode.worker_id == "d0"

    run(scenario)


def test_a_request_for_a_model_is_sent_on_when_the_next_one_has_only_stand_ins(router, run) -> None:
    async def scenario() -> None:
        r = router()
        old = r.decode("d0", model_fp="old")
        new = r.prefill("p1", model_fp="new")
        new.register.stands_in = True
        new.start(boot_epoch=2)
        r.core.lose(old.endpoint)
        with pytest.raises(Unavailable, match="its model was replaced"):
            await r.pick("r1", model_fp="old")

    run(scenario)

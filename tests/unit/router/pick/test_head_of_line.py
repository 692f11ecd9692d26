"""A request that needs much room waits for a reserved worker; those behind it use the others."""

import asyncio
import random
from typing import Any

import pytest

from baton.testing.virtual_clock import run_virtual
from baton.wire.failures import Unavailable
from services.router.peers.turns import Turns
from services.router.pick.head_of_line import MAX_RESERVED_S, ReservedWorkers
from services.router.queue.queue import RETRY_S

NUM_SLOTS = 4  # of the workers in memory
SECOND = "fp-2"


@pytest.fixture
def run(clock):
    return lambda scenario: run_virtual(scenario(), clock)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_the_worker_with_the_most_room_is_reserved(clock, view) -> None:
    reserved, d0, d1 = (
        ReservedWorkers(clock, Turns("own", clock)),
        view("d0", num_batch_slots_free=1),
        view("d1", num_batch_slots_free=2),
    )
    reserved.reserve("m", "r1", [d0, d1])
    assert reserved.of_model("m") == "d1"
    assert reserved.of_model("another") is None
    reserved.reserve("m", "r1", [view("d0", num_batch_slots_free=9), d1])
    assert reserved.of_model("m") == "d1", "it has begun to empty"
    reserved.reserve("m", "r1", [d0])
    assert reserved.of_model("m") == "d0"
    reserved.end("m")
    assert reserved.of_model("m") is None


def test_a_reservation_ends_after_its_maximum(clock, view) -> None:
    reserved, full = ReservedWorkers(clock, Turns("own", clock)), [view("d0")]
    reserved.reserve("m", "r1", full)
    clock.advance(MAX_RESERVED_S)
    reserved.reserve("m", "r1", full)
    assert reserved.of_model("m") is None
    reserved.end("m")
    reserved.reserve("m", "r2", full)
    assert reserved.of_model("m") == "d0"


def test_after_a_useless_reservation_there_is_none_for_as_long(clock, view) -> None:
    reserved, full, num_reserved_s = ReservedWorkers(clock, Turns("own", clock)), [view("d0")], 0
    for second in range(1000):
        # Each leaves when it has waited for five seconds.
        reserved.reserve("m", f"r{second // 5}", full)
        num_reserved_s += bool(reserved.of_model("m"))
        clock.advance(1.0)
    assert num_reserved_s <= 500
    reserved.end("m")
    reserved.reserve("m", "r", full)
    assert reserved.of_model("m") == "d0"


def test_models_that_are_gone_reserve_no_worker(clock, view) -> None:
    reserved = ReservedWorkers(clock, Turns("own", clock))
    reserved.reserve("m", "r1", [view("d0")])
    reserved.follow({"another"})
    assert reserved.of_model("m") is None


def test_a_request_that_passes_does_not_take_the_reserved_worker(router, run) -> None:
    async def scenario() -> None:
        fleet = router(stale_after_s=60)
        fleet.prefill()
        emptier, fuller = fleet.decode("d0"), fleet.decode("d1")
        emptier.load(num_running=1)
        fuller.load(num_running=2)
        wide = asyncio.create_task(fleet.pick("wide", num_choices=NUM_SLOTS))
        await settle()
        picks = [await fleet.pick(f"r{number}") for number in range(2)]
        assert {pick.decode.worker_id for pick in picks} == {"d1"}
        third = asyncio.create_task(fleet.pick("r2"))
        await asyncio.sleep(2 * RETRY_S)
        assert not third.done()
        emptier.load()
        assert (await wide).decode.worker_id == "d0"
        fuller.load("r0", "r1", num_running=3)
        assert (await third).decode.worker_id == "d1"

    run(scenario)


def test_equal_requests_are_served_in_order_while_others_pass(router, run) -> None:
    async def scenario() -> list[str]:
        fleet, served = router(stale_after_s=60), []
        fleet.prefill()
        decode = fleet.decode()
        decode.load(num_running=NUM_SLOTS)

        async def one(name: str, **fields: int) -> None:
            await fleet.pick(name, **fields)
            served.append(name)

        async with asyncio.TaskGroup() as tasks:
            for name in ("first", "second", "third"):
                tasks.create_task(one(name, num_prompt_tokens=1000))
            tasks.create_task(one("short", num_prompt_tokens=64))
            await settle()
            for num_running in (3, 2, 1, 0):
                decode.load(num_running=num_running, num_blocks_free=70)
                await asyncio.sleep(3.0)
        return served

    assert run(scenario) == ["first", "second", "third", "short"]


def test_a_short_prompt_passes_a_long_one_that_finds_no_blocks(router, run) -> None:
    async def scenario() -> None:
        fleet = router(stale_after_s=60)
        fleet.prefill()
        for name in ("d0", "d1"):
            fleet.decode(name).load(num_running=1, num_blocks_free=20)
        long = asyncio.create_task(fleet.pick("long", num_prompt_tokens=1000))
        await settle()
        assert (await fleet.pick("short")).decode.worker_id
        assert not long.done()
        long.cancel()

    run(scenario)


def test_a_prompt_that_only_a_prefill_worker_may_read_blocks_no_other(router, run) -> None:
    async def scenario() -> None:
        fleet = router(stale_after_s=60, local_prefill_max_tokens=100)
        fleet.decode()
        fleet.prefill().send(draining=True)
        await asyncio.sleep(1.5)
        long = asyncio.create_task(fleet.pick("long", num_prompt_tokens=500))
        await settle()
        assert not (await fleet.pick("short")).HasField("prefill")
        with pytest.raises(Unavailable):
            await long

    run(scenario)


def test_a_model_that_no_worker_has_registered_yet_blocks_no_other(router, run) -> None:
    async def scenario() -> None:
        fleet = router(workers=("a:1", "b:1", "c:1"), stale_after_s=60)
        unknown = asyncio.create_task(fleet.pick("r1", model_fp=SECOND))
        await settle()
        known = asyncio.create_task(fleet.pick("r2"))
        await settle()
        fleet.decode()
        fleet.prefill()
        fleet.core.lose("a:1")
        fleet.core.lose("b:1")
        fleet.core.lose("c:1")
        await asyncio.sleep(2 * RETRY_S)
        assert known.done()
        assert not unknown.done()
        unknown.cancel()

    run(scenario)


class Traffic:
    """Requests of random width on two full workers, which report what runs there."""

    def __init__(self, fleet: Any, seed: int) -> None:
        self.rng = random.Random(seed)
        self.fleet = fleet
        self.workers = {name: fleet.decode(name) for name in ("d0", "d1")}
        self.running = dict.fromkeys(self.workers, 0)
        self.granted: list[tuple[int, int]] = []
        self.longest_wait_s = 0.0
        fleet.prefill()

    def report(self, name: str, *accepted: str) -> None:
        self.workers[name].load(*accepted, num_running=self.running[name])

    async def demand(self, number: int) -> None:
        width = self.rng.choice((1, 1, 1, 2, NUM_SLOTS))
        pick = await self.fleet.pick(f"r{number}", num_choices=width)
        self.longest_wait_s = max(self.longest_wait_s, pick.queue_us / 1e6)
        self.granted.append((width, number))
        name = pick.decode.worker_id
        self.running[name] += width
        assert self.running[name] <= NUM_SLOTS
        self.report(name, f"r{number}")
        await asyncio.sleep(self.rng.uniform(0.1, 2.0))
        self.running[name] -= width
        self.report(name)


@pytest.mark.parametrize("seed", range(3))
def test_random_requests_are_served_in_order_of_their_width_and_none_starves(
    router, run, seed
) -> None:
    async def scenario() -> None:
        traffic = Traffic(router(stale_after_s=3600), seed)
        async with asyncio.TaskGroup() as tasks:
            for number in range(100):
                tasks.create_task(traffic.demand(number))
                await asyncio.sleep(traffic.rng.uniform(0, 0.5))
        assert len(traffic.granted) == 100
        for width in (1, 2, NUM_SLOTS):
            numbers = [number for each, number in traffic.granted if each == width]
            assert numbers == sorted(numbers)
        assert traffic.longest_wait_s < 30.0

    run(scenario)

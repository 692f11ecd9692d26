"""The queue of prompts: lanes by size, turns by bytes, and what happens when it is full."""

import asyncio

import pytest

from baton.testing.virtual_clock import run_virtual
from baton.wire.failures import Overloaded
from services.tokenizer.fair_queue import SMALL_BYTES, FairQueue, QueueLimits

MIB = 1024 * 1024
# A MiB of text takes about a tenth of a second.
S_PER_BYTE = 0.1 / MIB


class Bench:
    """A queue whose prompts take time by their size; keeps who was served, and when."""

    def __init__(self, **limits: int) -> None:
        self.queue = FairQueue(QueueLimits(**limits))
        self.served: list[str] = []
        self.waited_s: dict[str, float] = {}

    async def encode(self, tenant: str, num_bytes: int) -> None:
        loop = asyncio.get_running_loop()
        asked_s = loop.time()
        turn = await self.queue.enter(tenant, num_bytes)
        self.waited_s[tenant] = max(self.waited_s.get(tenant, 0.0), loop.time() - asked_s)
        try:
            await asyncio.sleep(num_bytes * S_PER_BYTE)
            self.served.append(tenant)
        finally:
            turn.leave()


def test_a_small_prompt_does_not_wait_for_the_large_ones_of_another_tenant() -> None:
    async def scenario() -> None:
        bench = Bench()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(24):
                tasks.create_task(bench.encode("heavy", MIB))
            await asyncio.sleep(0.01)
            tasks.create_task(bench.encode("light", 400))
        assert bench.waited_s["light"] == 0
        assert bench.waited_s["heavy"] == pytest.approx(1.1), "two at a time"

    run_virtual(scenario())


def test_a_large_prompt_waits_for_one_of_another_tenant_and_not_for_all() -> None:
    async def scenario() -> None:
        bench = Bench(num_large=1)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(24):
                tasks.create_task(bench.encode("heavy", MIB))
            await asyncio.sleep(0.01)
            tasks.create_task(bench.encode("other", MIB))
        assert bench.waited_s["other"] < 0.2

    run_virtual(scenario())


def test_tenants_take_turns_by_bytes_and_not_by_prompts() -> None:
    async def scenario() -> None:
        bench = Bench(num_large=1)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(8):
                tasks.create_task(bench.encode("large", MIB))
            for _ in range(32):
                tasks.create_task(bench.encode("middle", MIB // 4))
        for end in range(10, 40, 10):
            served = bench.served[:end]
            ahead = served.count("large") - served.count("middle") / 4
            assert abs(ahead) <= 1.25, "one prompt of each"

    run_virtual(scenario())


def test_a_tenant_that_comes_later_gets_no_credit_for_the_time_before() -> None:
    async def scenario() -> None:
        bench = Bench(num_large=1)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(20):
                tasks.create_task(bench.encode("early", MIB))
            await asyncio.sleep(1.05)
            for _ in range(10):
                tasks.create_task(bench.encode("late", MIB))
        after = bench.served[11:27]
        assert after.count("early") == pytest.approx(after.count("late"), abs=2)

    run_virtual(scenario())


@pytest.mark.parametrize("limits", [{"max_prompts": 10}, {"max_bytes": 10 * MIB}])
def test_a_full_queue_refuses_the_tenant_that_fills_it_and_takes_the_others(
    limits: dict[str, int],
) -> None:
    async def scenario() -> None:
        bench = Bench(**limits)
        heavy = [asyncio.create_task(bench.encode("heavy", MIB)) for _ in range(10)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await bench.encode("heavy", MIB)
        await bench.encode("light", SMALL_BYTES)
        ends = await asyncio.gather(*heavy, return_exceptions=True)
        assert [isinstance(end, Overloaded) for end in ends] == [False] * 9 + [True]
        assert bench.served.count("heavy") == 9

    run_virtual(scenario())


def test_a_prompt_whose_caller_leaves_takes_no_place_in_line() -> None:
    async def scenario() -> None:
        bench = Bench(num_large=1, max_prompts=3)
        tasks = [asyncio.create_task(bench.encode(f"t{n}", MIB)) for n in range(3)]
        await asyncio.sleep(0.05)
        tasks[1].cancel()
        await asyncio.sleep(0)
        await bench.encode("t3", MIB)
        await tasks[2]
        assert bench.served == ["t0", "t2", "t3"]

    run_virtual(scenario())


def test_a_caller_that_leaves_just_when_its_turn_comes_passes_it_on() -> None:
    async def scenario() -> None:
        bench = Bench(num_large=1)
        first = await bench.queue.enter("a", MIB)
        waits = [asyncio.create_task(bench.encode(name, MIB)) for name in ("b", "c")]
        await asyncio.sleep(0)
        first.leave()
        waits[0].cancel()
        await waits[1]
        assert bench.served == ["c"]

    run_virtual(scenario())


def test_a_thread_that_goes_on_without_its_caller_keeps_its_turn() -> None:
    async def scenario() -> None:
        bench = Bench(num_large=1)
        turn = await bench.queue.enter("a", MIB)
        turn.job = asyncio.get_running_loop().create_future()
        turn.leave()
        waits = asyncio.create_task(bench.encode("b", MIB))
        await asyncio.sleep(10)
        assert not bench.served
        turn.job.set_exception(Overloaded("nobody reads this"))
        await waits

    run_virtual(scenario())

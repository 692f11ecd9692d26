"""Tenants of a busy router share its workers: nobody's backlog is somebody else's wait."""

import asyncio

import pytest

from baton.testing.virtual_clock import run_virtual
from baton.wire.failures import Overloaded
from tests.unit.router.queue.open_loop import OpenLoop

SIZES = {"num_workers": 8, "slots": 4, "first_token_s": 0.5, "service_s": 2.0, "spread": 0.5}


@pytest.fixture
def run(clock):
    return lambda scenario: run_virtual(scenario(), clock)


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


def test_two_tenants_with_a_backlog_get_equal_times_of_the_engines(router, run) -> None:
    """A long prompt takes four times as long as a short one, in the prediction and in fact."""

    async def scenario() -> None:
        loop = OpenLoop(router(stale_after_s=3600, max_wait_s=3600), slots=4)
        seconds = {"long": 2.4, "short": 0.6}

        async def backlog(it: OpenLoop) -> None:
            sending = [
                it.one(
                    tenant=tenant,
                    num_prompt_tokens=round(64 * seconds[tenant] / 0.6),
                    expected_output_tokens=1,
                )
                for _ in range(100)
                for tenant in seconds
            ]
            await asyncio.gather(*sending)

        await loop.run(backlog)
        served = dict.fromkeys(seconds, 0.0)
        waited = loop.granted[4:104]
        for tenant in waited:
            served[tenant] += seconds[tenant]
            gap_s = abs(served["long"] - served["short"])
            assert gap_s <= 2 * seconds["long"]
        assert waited.count("short") == pytest.approx(80, abs=5)

    run(scenario)


def test_a_quiet_tenant_beside_a_loud_one_waits_for_about_one_slot(router, run) -> None:
    """First tokens of 0.5 s, answers of 1 to 3 s, five workers of 16 slots."""
    waits: list[float] = []

    async def scenario() -> None:
        sizes = SIZES | {"num_workers": 5, "slots": 16}
        loop = OpenLoop(router(stale_after_s=3600), **sizes)
        await loop.run(
            lambda it: it.send(2.0, 30, tenant="quiet"), lambda it: it.send(40.0, 30, tenant="loud")
        )
        assert not loop.refused(0, 1e9, "quiet")
        waits.extend(each.first_token_s for each in loop.served(15, 1e9, "quiet"))

    run(scenario)
    assert percentile(waits, 0.5) == pytest.approx(SIZES["first_token_s"])
    assert percentile(waits, 0.99) <= 1.25 * SIZES["first_token_s"]


def test_many_tenants_in_turn_are_served_as_fast_as_one(router, run, clock) -> None:
    async def scenario() -> None:
        loop = OpenLoop(router(stale_after_s=3600), **SIZES)
        per_s = 2 * loop.capacity_per_s / 10
        streams = [lambda it, n=number: it.send(per_s, 40, tenant=f"t{n}") for number in range(10)]
        await loop.run(*streams)
        served = [len(loop.served(15, 40, f"t{number}")) for number in range(10)]
        assert sum(served) >= 0.98 * 25 * loop.capacity_per_s
        fairness = sum(served) ** 2 / (len(served) * sum(each**2 for each in served))
        assert fairness >= 0.98

    run(scenario)


def test_a_low_priority_is_served_beside_a_high_one_that_takes_all(router, run) -> None:
    async def scenario() -> None:
        loop = OpenLoop(router(stale_after_s=3600), **SIZES)
        capacity = loop.capacity_per_s
        await loop.run(
            lambda it: it.send(1.5 * capacity, 60, tenant="high", priority=100),
            lambda it: it.send(0.5 * capacity, 60, tenant="low"),
        )
        low, high = (len(loop.served(30, 60, each)) / 30 for each in ("low", "high"))
        assert 0.05 * capacity <= low <= 0.2 * capacity
        assert low + high >= 0.98 * capacity

    run(scenario)


def test_the_backlog_of_one_tenant_locks_no_other_out(router, run) -> None:
    async def scenario() -> None:
        fleet = router(stale_after_s=3600, max_queued=8)
        fleet.decode().load(num_running=4)
        waiting = [asyncio.create_task(fleet.pick(f"a{n}", tenant="a")) for n in range(8)]
        await asyncio.sleep(0.1)
        with pytest.raises(Overloaded, match="8 requests of this tenant wait"):
            await fleet.pick("a8", tenant="a")
        waiting += [asyncio.create_task(fleet.pick(f"b{n}", tenant="b")) for n in range(4)]
        await asyncio.sleep(0.1)
        with pytest.raises(Overloaded, match="4 requests of this tenant wait"):
            await fleet.pick("b4", tenant="b")
        waiting.append(asyncio.create_task(fleet.pick("c0", tenant="c")))
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in waiting)
        for task in waiting:
            task.cancel()

    run(scenario)


def test_tenants_without_number_do_not_make_the_queue_longer_for_ever(router, run) -> None:
    async def scenario() -> None:
        fleet = router(stale_after_s=3600, max_queued=8)
        fleet.decode().load(num_running=4)
        waiting = [asyncio.create_task(fleet.pick(f"r{n}", tenant=f"t{n}")) for n in range(16)]
        await asyncio.sleep(0.1)
        with pytest.raises(Overloaded, match="16 requests wait"):
            await fleet.pick("late", tenant="late")
        for task in waiting:
            task.cancel()

    run(scenario)


def test_long_prompts_of_one_tenant_keep_no_more_than_their_bytes(router, run, hashes) -> None:
    async def scenario() -> None:
        fleet = router(stale_after_s=3600, max_queued_bytes=100)
        fleet.decode().load(num_running=4)
        ask = {"tenant": "a", "block_hashes": hashes(1, 2, 3, 4)}
        waiting = [asyncio.create_task(fleet.pick("a0", **ask))]
        await asyncio.sleep(0.1)
        with pytest.raises(Overloaded, match="64 bytes"):
            await fleet.pick("a1", **ask)
        waiting.append(asyncio.create_task(fleet.pick("b0", **(ask | {"tenant": "b"}))))
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in waiting)
        for task in waiting:
            task.cancel()

    run(scenario)

"""Outlier detection: the causes of an ejection, its limits, and the return."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from baton.testing.virtual_clock import run_virtual
from services.router.fleet.health import TICK_S


@pytest.fixture
def run(clock) -> Callable[..., None]:
    return lambda scenario: run_virtual(scenario(), clock)


class Pool:
    """Workers that report every tick, but for those in `silent`."""

    def __init__(self, router: Any, num_decode: int) -> None:
        self.router = router
        self.prefill = router.prefill("p0")
        self.decodes = [router.decode(f"d{i}") for i in range(num_decode)]
        self.silent: set[str] = set()
        self.figures: dict[str, dict[str, Any]] = {}
        self.step = 0

    async def run(self, seconds: float, *, router_sleeps: bool = False) -> None:
        for _ in range(round(seconds / TICK_S)):
            await asyncio.sleep(TICK_S)
            self.step += 1
            for worker in [self.prefill, *self.decodes]:
                if worker.endpoint not in self.silent:
                    figures = {"step_counter": self.step} | self.figures.get(worker.endpoint, {})
                    worker.load(**figures)
            if not router_sleeps:
                self.router.core.check_health(TICK_S)

    def state(self) -> dict[str, Any]:
        view = self.router.core.admission()
        return {worker.worker_id: worker for worker in view.models[0].workers}

    def ejected(self) -> list[str]:
        return [name for name, worker in self.state().items() if worker.ejected]


def test_a_stalled_worker_is_not_picked_and_its_streams_shall_move(router, run) -> None:
    async def scenario() -> None:
        pool = Pool(router(), 2)
        await pool.run(1)
        pool.figures["d0:1"] = {"stalled": True, "num_running": 3}
        await pool.run(TICK_S)
        assert pool.ejected() == ["d0"]
        assert not pool.state()["d0"].ready
        picks = [(await pool.router.pick(f"r{i}")).decode.worker_id for i in range(3)]
        assert picks == ["d1"] * 3

    run(scenario)


def test_a_silent_worker_is_ejected_within_two_and_a_half_seconds(router, run) -> None:
    async def scenario() -> None:
        pool = Pool(router(), 2)
        await pool.run(1)
        pool.silent.add("d1:1")
        await pool.run(1.75)
        assert pool.ejected() == []
        await pool.run(0.5)
        assert pool.ejected() == ["d1"]

    run(scenario)


def test_full_queues_slow_steps_and_no_room_never_eject(router, run) -> None:
    async def scenario() -> None:
        pool = Pool(router(), 2)
        for worker in pool.decodes:
            pool.figures[worker.endpoint] = {
                "num_running": 4,
                "num_waiting": 500,
                "num_blocks_free": 0,
                "decode_step_s": 3.0,
                "num_queued_prefill_tokens": 10**6,
            }
        await pool.run(TICK_S)
        for number in range(100):
            with pytest.raises(Exception, match="no worker had room"):
                await pool.router.pick(
                    f"r{number}", timeout_s=0.1, exclude_worker_ids=["d0"], has_failed=False
                )
            await pool.run(5)
        assert pool.ejected() == []

    run(scenario)


def test_at_most_half_of_a_pool_is_ejected(router, run) -> None:
    async def scenario() -> None:
        pool = Pool(router(), 4)
        await pool.run(1)
        for worker in pool.decodes[:3]:
            pool.figures[worker.endpoint] = {"stalled": True}
        await pool.run(5)
        assert pool.ejected() == []  # with three of four at once the fault may be elsewhere
        pool.figures.popitem()
        await pool.run(5)
        assert len(pool.ejected()) == 2

    run(scenario)


def test_the_only_worker_of_a_pool_is_never_ejected(router, run) -> None:
    async def scenario() -> None:
        pool = Pool(router(), 1)
        await pool.run(1)
        pool.silent.add("d0:1")
        await pool.run(20)
        assert pool.ejected() == []

    run(scenario)


def test_a_router_that_was_paused_ejects_no_worker(router, run) -> None:
    async def scenario() -> None:
        pool = Pool(router(), 2)
        await pool.run(1)
        await asyncio.sleep(60)
        pool.router.core.check_health(60)
        assert pool.ejected() == []
        await pool.run(5)
        assert pool.ejected() == []

    run(scenario)


def test_a_worker_at_which_requests_fail_again_and_again_is_ejected(router, run) -> None:
    async def scenario() -> None:
        pool = Pool(router(), 2)
        await pool.run(1)
        for number in range(3):
            # Many streams that fail together are one failure.
            for stream in range(10):
                request_id = f"r{number}.{stream}"
                await pool.router.pick(request_id, exclude_worker_ids=["d0"], has_failed=True)
                pool.decodes[1].load(request_id)
            assert pool.ejected() == []
            await pool.run(1.25)
        assert pool.ejected() == ["d0"]

    run(scenario)


def test_failures_far_apart_are_forgotten(router, run) -> None:
    async def scenario() -> None:
        pool = Pool(router(), 2)
        for number in range(10):
            request_id = f"r{number}"
            await pool.router.pick(request_id, exclude_worker_ids=["d0"], has_failed=True)
            pool.decodes[1].load(request_id)
            await pool.run(11)
        assert pool.ejected() == []

    run(scenario)


def test_it_returns_on_probation_with_one_request_at_a_time_until_its_core_has_stepped(
    router, run
) -> None:
    async def scenario() -> None:
        pool = Pool(router(), 2)
        await pool.run(1)
        pool.figures["d0:1"] = {"stalled": True, "step_counter": 5}
        await pool.run(1)
        pool.figures = {"d0:1": {"step_counter": 5}, "d1:1": {"num_running": 4}}
        await pool.run(1.5)
        assert pool.ejected() == ["d0"], "too early"
        await pool.run(1)
        assert (await pool.router.pick("first")).decode.worker_id == "d0"
        with pytest.raises(Exception, match="no worker had room"):
            await pool.router.pick("second", timeout_s=0.01)
        pool.figures["d0:1"] = {"step_counter": 13, "num_running": 1}
        await pool.run(0.5)
        for request_id in ("second", "third", "fourth"):
            assert (await pool.router.pick(request_id)).decode.worker_id == "d0"

    run(scenario)


def test_the_next_life_of_an_ejected_worker_begins_on_probation(router, run) -> None:
    async def scenario() -> None:
        pool = Pool(router(), 2)
        await pool.run(1)
        pool.figures["d0:1"] = {"stalled": True}
        await pool.run(1)
        pool.router.core.lose("d0:1")
        pool.figures = {"d0:1": {"step_counter": 0}, "d1:1": {"num_running": 4}}
        pool.decodes[0].start(boot_epoch=2)
        await pool.run(TICK_S)
        assert pool.ejected() == []
        assert (await pool.router.pick("first")).decode.worker_id == "d0"
        with pytest.raises(Exception, match="no worker had room"):
            await pool.router.pick("second", timeout_s=0.01)

    run(scenario)


def test_failures_that_could_not_eject_a_worker_are_forgotten_too(router, run) -> None:
    async def scenario() -> None:
        pool = Pool(router(), 2)
        await pool.run(1)
        pool.silent.add("d1:1")
        pool.router.core.lose("d1:1")
        for number in range(3):
            request_id = f"r{number}"
            failing = pool.router.pick(request_id, exclude_worker_ids=["d0"], has_failed=True)
            picking = asyncio.create_task(failing)
            await pool.run(1.25)
            assert (await picking).decode.worker_id == "d0"
            pool.decodes[0].load(request_id)
        await pool.run(60)
        pool.silent.clear()
        pool.decodes[1].start(boot_epoch=2)
        await pool.run(2 * TICK_S)
        assert pool.ejected() == []

    run(scenario)

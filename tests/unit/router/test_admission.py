"""The view of the fleet that gateways get: built once for all of them, and anew after a change."""

import asyncio

import pytest

from baton.testing.virtual_clock import run_virtual
from baton.wire.v1 import router_pb2


@pytest.fixture
def run(clock):
    return lambda scenario: run_virtual(scenario(), clock)


def running(view: router_pb2.WatchAdmissionResponse) -> list[int]:
    (model,) = view.models
    return [worker.num_running for worker in model.workers]


def ready(view: router_pb2.WatchAdmissionResponse) -> list[bool]:
    (model,) = view.models
    return [worker.ready for worker in model.workers]


def test_a_load_report_is_in_the_view_a_moment_later(router, run) -> None:
    async def scenario() -> None:
        fleet = router()
        worker = fleet.decode()
        assert running(fleet.core.admission()) == [0]
        worker.load(num_running=3)
        await asyncio.sleep(0.05)
        assert running(fleet.core.admission()) == [3]

    run(scenario)


@pytest.mark.parametrize("change", ["lost", "draining", "stalled"])
def test_a_worker_that_must_not_be_picked_is_so_in_the_next_view(router, run, change) -> None:
    async def scenario() -> None:
        fleet = router()
        worker = fleet.decode("d0")
        fleet.decode("d1")
        assert ready(fleet.core.admission()) == [True, True]
        if change == "lost":
            fleet.core.lose(worker.endpoint)
        elif change == "draining":
            worker.send(draining=True)
        else:
            worker.load(stalled=True)
        assert ready(fleet.core.admission()) == [False, True]

    run(scenario)


def test_a_new_worker_is_in_the_next_view(router, run) -> None:
    async def scenario() -> None:
        fleet = router()
        fleet.decode("d0")
        assert ready(fleet.core.admission()) == [True]
        fleet.decode("d1")
        assert ready(fleet.core.admission()) == [True, True]

    run(scenario)


def test_the_predicted_wait_does_not_add_up_from_view_to_view(router, run) -> None:
    async def scenario() -> None:
        fleet = router()
        fleet.decode()
        prefill = fleet.prefill()
        prefill.load(num_queued_prefill_tokens=4000, prefill_tokens_per_s=2000.0)
        await asyncio.sleep(0.05)
        views = [fleet.core.admission() for _ in range(3)]
        assert [view.models[0].predicted_wait_s[0] for view in views] == [2.0, 2.0, 2.0]

    run(scenario)

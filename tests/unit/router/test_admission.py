"""The view of the fleet that gateways get: whole at first, and then what has changed."""

import asyncio

import pytest

from baton.testing.virtual_clock import run_virtual
from baton.wire.failures import InvalidRequest, Overloaded
from baton.wire.v1 import router_pb2
from services.router.admission import (
    CANCELLED_S,
    LOAD_S,
    MAX_BEHIND,
    MAX_CANCELLED,
    MAX_CANCELLED_OF_TENANT,
    QUIET_S,
)


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


class Gateway:
    """Follows the views of a router; `told` has the workers that each of them named."""

    def __init__(self, core, *, takes_deltas: bool = True) -> None:
        self.views: list[router_pb2.WatchAdmissionResponse] = []
        self._stream = core.watch_admission(takes_deltas=takes_deltas)

    async def read(self) -> router_pb2.WatchAdmissionResponse:
        self.views.append(await anext(self._stream))
        return self.views[-1]

    @property
    def told(self) -> list[list[str]]:
        return [[w.worker_id for m in view.models for w in m.workers] for view in self.views]


def test_a_gateway_hears_of_all_workers_once_and_then_of_those_that_change(router, run) -> None:
    async def scenario() -> None:
        fleet = router(stale_after_s=60)
        first, second = fleet.decode("d0"), fleet.decode("d1")
        gateway = Gateway(fleet.core)
        for _ in range(2):
            await gateway.read()
        second.load(num_running=3)
        second.send(draining=True)
        await gateway.read()
        first.load(stalled=True)
        await gateway.read()
        assert gateway.told == [["d0", "d1"], [], ["d1"], ["d0"]]
        assert [view.is_delta for view in gateway.views] == [False, True, True, True]
        assert [view.number for view in gateway.views] == [1, 2, 3, 4]

    run(scenario)


async def load_each_tenth(worker, seconds: float) -> None:
    for number in range(round(seconds / 0.1)):
        worker.load(num_running=number)
        await asyncio.sleep(0.1)


def test_the_load_of_a_worker_is_told_now_and_then(router, run, clock) -> None:
    async def scenario() -> None:
        fleet = router(stale_after_s=60)
        busy = fleet.decode("d0")
        fleet.decode("d1")
        gateway = Gateway(fleet.core)
        loading = asyncio.create_task(load_each_tenth(busy, LOAD_S + 1))
        began_at, told_at = clock.now(), []
        while clock.now() - began_at < LOAD_S + 0.5:
            await gateway.read()
            if "d0" in gateway.told[-1]:
                told_at.append(clock.now() - began_at)
        assert told_at == pytest.approx([0, LOAD_S], abs=0.11)
        assert "d1" not in gateway.told[-1]
        await loading

    run(scenario)


def test_a_worker_that_falls_silent_and_speaks_again_is_told_each_time(router, run) -> None:
    async def scenario() -> None:
        fleet = router(stale_after_s=0.25)
        silent, other = fleet.decode("d0"), fleet.decode("d1")
        gateway = Gateway(fleet.core)
        await gateway.read()
        loading = asyncio.create_task(load_each_tenth(other, 1.0))
        is_ready = []
        while len(is_ready) < 2:
            await gateway.read()
            is_ready += [w.ready for w in gateway.views[-1].models[0].workers]
            if is_ready == [False]:
                silent.load()
        assert is_ready == [False, True]
        await loading

    run(scenario)


def test_a_quiet_fleet_is_told_of_twice_a_second_and_a_change_at_the_next_look(
    router, run, clock
) -> None:
    async def scenario() -> None:
        fleet = router(stale_after_s=60, no_worker_wait_s=60)
        fleet.decode("d0")
        gateway = Gateway(fleet.core)
        await gateway.read()
        await gateway.read()  # the first one that tells changes
        began_at = clock.now()
        for _ in range(4):
            await gateway.read()
        assert clock.now() - began_at == pytest.approx(4 * QUIET_S, abs=0.11)
        began_at = clock.now()
        fleet.core.cancel(router_pb2.CancelRequest(request_id="r", tenant="t"))
        assert [each.request_id for each in (await gateway.read()).cancelled] == ["r"]
        assert clock.now() - began_at <= 0.11

    run(scenario)


def test_a_worker_that_comes_or_leaves_makes_the_next_view_whole(router, run) -> None:
    async def scenario() -> None:
        fleet = router(stale_after_s=60)
        fleet.decode("d0")
        leaving = fleet.decode("d1")
        gateway = Gateway(fleet.core)
        await gateway.read()
        fleet.core.list_workers(frozenset({"d0:1"}))
        fleet.core.lose(leaving.endpoint)
        fleet.core.check_health(0.0)
        await gateway.read()
        fleet.decode("d2")
        await gateway.read()
        assert gateway.told == [["d0", "d1"], ["d0"], ["d0", "d2"]]
        assert not any(view.is_delta for view in gateway.views)

    run(scenario)


def test_a_gateway_that_comes_later_gets_a_whole_view_and_the_same_changes(router, run) -> None:
    async def scenario() -> None:
        fleet = router(stale_after_s=60)
        worker = fleet.decode("d0")
        early, late = Gateway(fleet.core), Gateway(fleet.core)
        for _ in range(3):
            await early.read()
        await late.read()
        worker.send(draining=True)
        assert await early.read() is await late.read()
        assert late.told == [["d0"], ["d0"]]
        assert [view.number for view in late.views] == [3, 4]

    run(scenario)


def test_a_gateway_that_is_far_behind_gets_a_whole_view(router, run) -> None:
    async def scenario() -> None:
        fleet = router(stale_after_s=60)
        fleet.decode("d0")
        quick, slow = Gateway(fleet.core), Gateway(fleet.core)
        await slow.read()
        for _ in range(MAX_BEHIND + 2):
            await quick.read()
        assert not (await slow.read()).is_delta
        assert slow.views[-1].number == quick.views[-1].number
        assert (await slow.read()).is_delta

    run(scenario)


def test_a_gateway_that_takes_no_changes_gets_whole_views_only(router, run) -> None:
    async def scenario() -> None:
        fleet = router(stale_after_s=60)
        fleet.decode("d0")
        gateway = Gateway(fleet.core, takes_deltas=False)
        for _ in range(3):
            await gateway.read()
        assert gateway.told == [["d0"]] * 3
        assert not any(view.is_delta for view in gateway.views)

    run(scenario)


def test_gateways_hear_for_a_moment_which_requests_to_end(router, run) -> None:
    async def scenario() -> None:
        core = router().core
        core.cancel(router_pb2.CancelRequest(request_id="r1", tenant="acme"))
        for view in (core.admission(), core.admission_changes()):
            assert [(each.request_id, each.tenant) for each in view.cancelled] == [("r1", "acme")]
        await asyncio.sleep(CANCELLED_S + 0.1)
        assert not core.admission().cancelled

    run(scenario)


def test_too_many_cancellations_at_once_are_refused(router, run) -> None:
    async def scenario() -> None:
        core = router().core
        for number in range(MAX_CANCELLED):
            core.cancel(router_pb2.CancelRequest(request_id="r", tenant=f"t{number}"))
        with pytest.raises(Overloaded):
            core.cancel(router_pb2.CancelRequest(request_id="one more"))
        await asyncio.sleep(CANCELLED_S + 0.1)
        core.cancel(router_pb2.CancelRequest(request_id="later"))

    run(scenario)


def test_a_tenant_with_many_cancellations_leaves_room_for_the_others(router, run) -> None:
    async def scenario() -> None:
        core = router().core
        for number in range(MAX_CANCELLED_OF_TENANT):
            core.cancel(router_pb2.CancelRequest(request_id=f"r{number}", tenant="acme"))
        with pytest.raises(Overloaded):
            core.cancel(router_pb2.CancelRequest(request_id="one more", tenant="acme"))
        core.cancel(router_pb2.CancelRequest(request_id="r0", tenant="other"))

    run(scenario)


def test_a_name_that_no_request_can_have_is_in_no_view(router, run) -> None:
    async def scenario() -> None:
        core = router().core
        with pytest.raises(InvalidRequest):
            core.cancel(router_pb2.CancelRequest(request_id="r" * 50_000, tenant="acme"))
        assert not core.admission().cancelled

    run(scenario)

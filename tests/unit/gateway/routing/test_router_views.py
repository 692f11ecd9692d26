"""The views of a router at a gateway: a whole one, with the changes that come after it."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from baton.testing.virtual_clock import VirtualClock, run_virtual
from baton.wire.v1 import router_pb2
from services.gateway.clients.protocols import CallContext
from services.gateway.routing.fallback_picker import FallbackPicker
from services.gateway.routing.ready_workers import ReadyWorkers
from services.gateway.routing.routers import Routers


class ChangingRouter:
    """Sends the views that it is given, one by one, on each watch from the first."""

    def __init__(self, *views: router_pb2.WatchAdmissionResponse) -> None:
        self.views = views
        self.num_watches = 0

    async def pick(self, request: Any, context: CallContext) -> router_pb2.PickResponse:
        raise AssertionError("nobody asks it")

    async def watch_admission(self) -> AsyncIterator[router_pb2.WatchAdmissionResponse]:
        self.num_watches += 1
        for view in self.views:
            yield view
            await asyncio.sleep(0.1)
        await asyncio.sleep(1e9)


def view_of(number: int, *models: Any, is_delta: bool = True) -> Any:
    return router_pb2.WatchAdmissionResponse(number=number, models=models, is_delta=is_delta)


def change(worker_id: str, model_fp: str = "m1", **fields: Any) -> Any:
    worker = router_pb2.WorkerState(
        worker_id=worker_id, role=router_pb2.WORKER_ROLE_DECODE, **fields
    )
    return router_pb2.ModelState(model_fp=model_fp, num_queued=5, workers=[worker])


def follow_views(*views: Any, for_s: float) -> tuple[ChangingRouter, list[Sequence[Any]]]:
    """Let a gateway follow a router that sends these; returns what it took in."""
    clock, router, seen = VirtualClock(), ChangingRouter(*views), []
    alone = FallbackPicker(random.Random(4), ReadyWorkers(), lambda worker_id: 0).pick
    routers = Routers({"r": router}, clock, random.Random(3), seen.append, alone)

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(routers.run())
            await asyncio.sleep(for_s)
            running.cancel()

    run_virtual(main(), clock)
    return router, seen


def test_changes_are_taken_into_the_view_that_was_whole() -> None:
    ready = [change(name, ready=True).workers[0] for name in ("d1", "d2")]
    whole = router_pb2.ModelState(model_fp="m1", name="m1", workers=ready)
    router, seen = follow_views(
        view_of(7, whole, is_delta=False),
        view_of(8, change("d2", ready=False, num_running=4)),
        view_of(9, router_pb2.ModelState(model_fp="m1", num_queued=6)),
        for_s=0.25,
    )
    assert router.num_watches == 1
    states = [[(w.worker_id, w.ready, w.num_running) for w in m.workers] for (m,) in seen]
    after = [("d1", True, 0), ("d2", False, 4)]
    assert states == [[("d1", True, 0), ("d2", True, 0)], after, after]
    assert [m.num_queued for (m,) in seen] == [0, 5, 6]
    assert {m.name for (m,) in seen} == {"m1"}


@pytest.mark.parametrize(
    "missed",
    [
        view_of(9, change("d1")),
        view_of(8, change("unknown")),
        view_of(8, change("d1", model_fp="unknown")),
    ],
)
def test_a_gateway_that_misses_a_change_asks_for_a_whole_view(missed: Any) -> None:
    whole = router_pb2.ModelState(model_fp="m1", workers=change("d1").workers)
    router, seen = follow_views(view_of(7, whole, is_delta=False), missed, for_s=0.45)
    assert router.num_watches == 2
    assert all(m.num_queued == 0 for (m,) in seen)


def test_a_look_brings_a_whole_view_of_a_router_that_answers() -> None:
    clock, whole = VirtualClock(), view_of(7, change("d1"), is_delta=False)
    answering, silent = ChangingRouter(whole), ChangingRouter()
    alone = FallbackPicker(random.Random(4), ReadyWorkers(), lambda worker_id: 0).pick

    def look(router: ChangingRouter) -> Sequence[Any]:
        routers = Routers({"r": router}, clock, random.Random(3), lambda models: None, alone)
        return run_virtual(routers.look(), clock)

    assert list(look(answering)) == list(whole.models)
    assert look(silent) == ()

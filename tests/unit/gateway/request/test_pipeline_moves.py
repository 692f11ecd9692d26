"""The picks of a request whose worker is lost."""

import asyncio

from baton.wire.failures import Unavailable
from tests.unit.gateway.fakes import Fleet, RecordingSink, simulate


def test_only_a_stream_that_has_begun_asks_to_go_before_others() -> None:
    async def scenario(fleet: Fleet) -> None:
        gone = Unavailable("gone", reason="worker_lost")
        fleet.workers["w1"].refusal = gone
        fleet.workers["w2"].texts = ["x" * 1000]
        sink = RecordingSink()
        task = fleet.tasks.create_task(fleet.chat(sink))
        await sink.started_event.wait()
        fleet.workers["w2"].refusal = gone
        fleet.workers["w2"].cut()
        await asyncio.sleep(2)
        task.cancel()
        assert [pick.has_begun for pick in fleet.router.picked] == [False, False, True]

    simulate(scenario)

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


def test_a_request_has_its_adapter_in_every_attempt_and_at_the_tokenizer() -> None:
    def prepare(fleet: Fleet) -> None:
        for worker in fleet.router.models[0].workers:
            worker.adapters.add(name="poems", fingerprint="a1")

    async def scenario(fleet: Fleet) -> None:
        fleet.workers["w1"].refusal = Unavailable("gone", reason="worker_lost")
        await fleet.chat(RecordingSink(), model="poems")
        assert [pick.adapter for pick in fleet.router.picked] == ["a1", "a1"]
        submits = [each for worker in fleet.workers.values() for each in worker.submits]
        assert [submit.adapter for submit in submits] == ["a1", "a1"]
        assert [each.adapter for each in fleet.tokenizer.encoded] == ["a1"]
        suspicious = {pick.poison_fingerprint for pick in fleet.router.picked}
        await fleet.chat(RecordingSink(), model="demo")
        assert fleet.router.picked[-1].adapter == ""
        assert fleet.router.picked[-1].poison_fingerprint not in suspicious

    simulate(scenario, prepare=prepare)

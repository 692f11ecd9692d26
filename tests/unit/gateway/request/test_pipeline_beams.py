import asyncio

import pytest

from baton.wire.failures import Unavailable
from baton.wire.v1 import sampling_pb2, worker_pb2
from tests.unit.gateway.fakes import Fleet, simulate


def test_the_worker_gets_a_search_without_sampling() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = ["best", "second"]
        sink = await fleet.chat(use_beam_search=True, n=2, early_stopping="never", length_penalty=0)
        sampling = fleet.worker.submits[0].sampling
        assert (sampling.use_beam_search, sampling.num_choices) == (True, 2)
        assert (sampling.temperature, sampling.top_p) == (0, 1)
        assert sampling.HasField("length_penalty")
        assert sampling.length_penalty == 0
        assert sampling.early_stopping == sampling_pb2.EARLY_STOPPING_NEVER
        assert [sink.text(0), sink.text(1)] == ["best", "second"]
        assert fleet.record.num_output_tokens == 5 + 7
        await fleet.chat(n=2)
        assert not fleet.worker.submits[1].sampling.use_beam_search

    simulate(scenario)


def test_a_search_may_take_longer_than_a_first_token() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.prefill_s = 5.0
        fleet.first_token_s = 1.0
        sink = await fleet.chat(use_beam_search=True)
        assert sink.reason() == "stop"

    simulate(scenario)


def test_a_search_that_is_lost_with_its_prompt_read_records_no_cached_tokens() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.prefill_s = 100.0
        task = asyncio.create_task(fleet.chat(use_beam_search=True))
        await asyncio.sleep(1)
        side = worker_pb2.StepSide(handle=fleet.worker.submits[0].handle)
        side.prefill.num_cached_tokens = 3
        await fleet.worker.say(worker_pb2.WorkerFrame(step=worker_pb2.Step(side=[side])))
        await asyncio.sleep(0.1)
        fleet.unreachable |= fleet.workers.keys()
        fleet.worker.cut()
        with pytest.raises(Unavailable):
            await task
        assert fleet.record.num_prompt_tokens == 0
        assert fleet.record.num_cached_tokens == 0

    simulate(scenario)

"""Requests with a LoRA adapter go only to workers that serve it."""

import pytest

from baton.testing.virtual_clock import run_virtual
from baton.wire.failures import Unavailable
from baton.wire.pick_reasons import text_of
from baton.wire.v1 import router_pb2, worker_pb2


@pytest.fixture
def run(clock):
    return lambda scenario: run_virtual(scenario(), clock)


def serve(worker, **fingerprints: str) -> None:
    adapters = [
        router_pb2.Adapter(name=name, fingerprint=fingerprint)
        for name, fingerprint in fingerprints.items()
    ]
    worker.send(adapters=worker_pb2.AdapterList(adapters=adapters))


def test_a_request_goes_to_the_workers_that_serve_its_adapter(router, run) -> None:
    async def scenario() -> None:
        fleet = router()
        fleet.decode("d0")
        serve(fleet.decode("d1"), poems="a1")
        fleet.prefill("p0")
        serve(fleet.prefill("p1"), poems="a1")
        for number in range(3):
            response = await fleet.pick(f"r{number}", adapter="a1")
            assert (response.decode.worker_id, response.prefill.worker_id) == ("d1", "p1")
            assert "d0 no adapter" in text_of(response.reasons)

    run(scenario)


def test_a_decode_worker_prefills_by_itself_where_no_prefill_worker_has_the_adapter(
    router, run
) -> None:
    async def scenario() -> None:
        fleet = router()
        serve(fleet.decode("d0"), poems="a1")
        fleet.prefill("p0")
        assert not (await fleet.pick("r1", adapter="a1")).HasField("prefill")
        assert (await fleet.pick("r2")).HasField("prefill")

    run(scenario)


def test_an_adapter_that_no_worker_serves_any_more_is_refused_at_once(router, run) -> None:
    async def scenario() -> None:
        fleet = router()
        worker = fleet.decode("d0")
        fleet.prefill("p0")
        serve(worker, poems="a1")
        serve(worker, poems="a2")
        with pytest.raises(Unavailable, match="adapter") as refused:
            await fleet.pick("r1", adapter="a1")
        assert refused.value.reason == "no_worker"

    run(scenario)


def test_gateways_are_told_the_adapters_of_each_worker_when_they_change(router, run) -> None:
    async def scenario() -> None:
        fleet = router()
        worker = fleet.decode("d0")
        serve(worker, poems="a1", code="a2")
        (state,) = fleet.core.admission().models[0].workers
        told = {each.name: each.fingerprint for each in state.adapters}
        assert told == {"poems": "a1", "code": "a2"}
        serve(worker)
        (state,) = fleet.core.admission().models[0].workers
        assert not state.adapters

    run(scenario)

"""Requests go only to workers with an engine that serves them, and are refused when none does."""

import pytest

from baton.testing.virtual_clock import run_virtual
from baton.wire.failures import InvalidRequest
from baton.wire.pick_reasons import text_of


@pytest.fixture
def run(clock):
    return lambda scenario: run_virtual(scenario(), clock)


def start_vllm(worker) -> None:
    """Register the worker again, as a process whose engine serves neither beams nor choices."""
    worker.register.engine = "vllm 0.32.0"
    worker.register.unsupported[:] = ["use_beam_search", "n"]
    worker.start(boot_epoch=2)


def test_a_request_goes_to_the_worker_whose_engine_serves_it(router, run) -> None:
    async def scenario() -> None:
        fleet = router()
        start_vllm(fleet.decode("d0"))
        fleet.decode("d1")
        fleet.prefill()
        for i in range(3):
            response = await fleet.pick(f"r{i}", needs=["n"])
            assert response.decode.worker_id == "d1"
            assert "d0 unsupported" in text_of(response.reasons)

    run(scenario)


def test_a_request_without_such_parameters_goes_to_every_engine(router, run) -> None:
    async def scenario() -> None:
        fleet = router()
        start_vllm(fleet.decode("d0"))
        fleet.prefill()
        assert (await fleet.pick("r1", needs=["response_format"])).decode.worker_id == "d0"

    run(scenario)


def test_a_request_that_no_engine_serves_is_refused_by_name_at_once(router, run) -> None:
    async def scenario() -> None:
        fleet = router()
        start_vllm(fleet.decode("d0"))
        fleet.prefill()
        with pytest.raises(InvalidRequest, match=r"use_beam_search: .*vllm 0\.32\.0") as refused:
            await fleet.pick("r1", needs=["use_beam_search"])
        assert refused.value.reason == "unsupported_parameter"
        assert refused.value.param == "use_beam_search"

    run(scenario)


def test_a_prefill_worker_whose_engine_lacks_it_is_left_out(router, run) -> None:
    async def scenario() -> None:
        fleet = router()
        fleet.decode()
        start_vllm(fleet.prefill("p0"))
        fleet.prefill("p1")
        for i in range(3):
            assert (await fleet.pick(f"r{i}", needs=["n"])).prefill.worker_id == "p1"

    run(scenario)


def test_gateways_are_told_the_engines_and_what_none_of_them_serves(router, run) -> None:
    async def scenario() -> None:
        fleet = router()
        start_vllm(fleet.decode("d0"))
        (model,) = fleet.core.admission().models
        assert (model.engines, model.unsupported) == (["vllm 0.32.0"], ["n", "use_beam_search"])
        other = fleet.decode("d1")
        other.register.engine, other.register.unsupported[:] = "baton", ["n"]
        other.start(boot_epoch=2)
        (model,) = fleet.core.admission().models
        assert (model.engines, model.unsupported) == (["baton", "vllm 0.32.0"], ["n"])

    run(scenario)

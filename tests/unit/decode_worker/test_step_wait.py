"""How long requests wait for the steps that run, as a decode worker tells routers."""

import asyncio

import pytest
from msgspec.structs import replace

from baton.engine.protocol.messages import Admitted, EngineLoad
from baton.testing.virtual_clock import virtual
from tests.unit.decode_worker.conftest import Worker, worker
from tests.unit.decode_worker.test_attempt import submitted
from tests.unit.worker.scripted_core import LOAD

BUSY = replace(LOAD, num_running=4, decode_step_s=0.01)


async def admit(w: Worker, load: EngineLoad, num_requests: int, wait_s: float) -> None:
    """Requests that each wait so long until the core has room for them."""
    for number in range(num_requests):
        gateway = await w.gateway(f"g{number}")
        w.core.tell(load)
        add = await submitted(w, gateway, prefill_endpoint="nowhere")
        await asyncio.sleep(wait_s)
        w.core.tell(load, admitted=[Admitted(add.seq_id, 0)])
        assert (await gateway.read()).HasField("refused")
        await gateway.say(bye={})


@virtual
async def test_requests_that_wait_eight_times_as_long_as_a_step_is_reported_make_the_mean() -> None:
    async with worker() as w:
        await admit(w, BUSY, 1, 0.01)
        assert w.deps.reports.load.step_wait_s == pytest.approx(0.01, rel=0.01)
        await admit(w, BUSY, 15, 0.08)
        assert w.deps.reports.load.step_wait_s == pytest.approx(0.08, rel=0.05)


@virtual
async def test_a_worker_that_runs_nothing_measures_no_wait_for_a_step() -> None:
    async with worker() as w:
        await admit(w, LOAD, 3, 0.08)
        assert w.deps.reports.load.step_wait_s == 0

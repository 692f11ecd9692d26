"""Tests that plant what the gateway's auditor must see."""

import asyncio
from dataclasses import replace

from baton.runtime import instruments
from baton.runtime.audit import LOOK_EVERY_S
from services.gateway.tenants.lease import Lease
from tests.unit.gateway.fakes import Fleet, RecordingSink, simulate


def told(check: str) -> float:
    return instruments.AUDIT_VIOLATIONS.labels(check)._value.get()


def found(fleet: Fleet) -> list[tuple[str, str]]:
    return [(v.check, v.request_id) for v in fleet.gateway.auditor.violations()]


def test_requests_of_all_kinds_leave_nothing_to_find() -> None:
    async def scenario(fleet: Fleet) -> None:
        before = told("settled_once")
        running = fleet.tasks.create_task(fleet.chat())
        await asyncio.sleep(0.08)
        assert not found(fleet)
        await running
        assert not found(fleet)
        assert told("settled_once") == before

    simulate(scenario)


def test_a_request_is_reserved_renewed_and_settled_under_one_id() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.prefill_s = 6.0  # longer than a beat
        incoming = replace(fleet.chat_request(), client_request_id="theirs")
        running = fleet.tasks.create_task(fleet.gateway.pipeline.run(incoming, RecordingSink()))
        await asyncio.sleep(5.5)
        assert not found(fleet)
        await running
        quota = fleet.quota
        for named in (quota.reserved, quota.renewals, quota.settled):
            assert {each.request_id for each in named} == {incoming.request_id}

    simulate(scenario)


def test_a_lease_without_a_request_is_reported_with_its_id() -> None:
    async def scenario(fleet: Fleet) -> None:
        before = told("lease_without_request")
        stray = Lease("r-stray", "acme", "k", "demo", num_prompt_tokens=3, num_granted=5)
        fleet.gateway.leases.open(stray)
        assert found(fleet) == [("lease_without_request", "r-stray")]
        await asyncio.sleep(LOOK_EVERY_S * 2 + 1)
        assert told("lease_without_request") - before == 1

    simulate(scenario)


def test_a_request_that_does_not_settle_is_reported_when_it_ends() -> None:
    async def scenario(fleet: Fleet) -> None:
        before = told("settled_once")
        fleet.gateway.auditor.settled = lambda x: None  # type: ignore[method-assign]
        await fleet.chat()
        assert told("settled_once") - before == 1

    simulate(scenario)


def test_an_attempt_that_outlives_its_request_is_reported() -> None:
    async def scenario(fleet: Fleet) -> None:
        links = fleet.gateway.links
        links.open_attempts = lambda: iter([("r-gone", "w1")])  # type: ignore[method-assign]
        assert found(fleet) == [("attempt_without_request", "r-gone")]

    simulate(scenario)


def test_a_running_request_whose_lease_was_dropped_is_reported() -> None:
    async def scenario(fleet: Fleet) -> None:
        running = fleet.tasks.create_task(fleet.chat())
        await asyncio.sleep(0.08)
        leases = fleet.gateway.leases
        (request_id,) = leases.open_request_ids()
        leases.open_request_ids = lambda: iter(())  # type: ignore[method-assign]
        assert found(fleet) == [("request_without_lease", request_id)]
        await running

    simulate(scenario)


def test_an_ejected_worker_is_given_up_as_soon_as_a_router_says_so() -> None:
    async def scenario(fleet: Fleet) -> None:
        lost: list[str] = []
        fleet.gateway.links.lose = lost.append  # type: ignore[method-assign]
        fleet.router.models[0].workers[0].ejected = True
        await asyncio.sleep(0.2)
        assert set(lost) == {fleet.router.models[0].workers[0].worker_id}

    simulate(scenario)


def test_a_request_that_is_cut_off_while_its_record_goes_to_disk_has_settled() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.quota.settle_delay_s = 0.02
        before = told("settled_once")
        sink = RecordingSink()
        task = asyncio.create_task(fleet.chat(sink))
        await sink.started_event.wait()
        while not sink.batches[-1:] or sink.reason() is None:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
        await asyncio.sleep(3)
        assert task.done()
        assert told("settled_once") == before
        assert fleet.record.num_output_tokens == 13

    simulate(scenario)

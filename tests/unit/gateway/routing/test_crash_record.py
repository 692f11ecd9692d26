"""Cores that die or stand still under a gateway's requests: its reports, retries and picks."""

import asyncio

import pytest

from baton.wire.failures import BatonError, InvalidRequest, Unavailable
from baton.wire.limits import NUM_TOKENS_ALONE
from baton.wire.v1 import router_pb2, worker_pb2
from services.gateway.clients.protocols import CallContext
from services.gateway.routing.crash_record import MAX_NAMED, Crashes, CrashRecord
from tests.unit.gateway.fakes import FakeWorker, Fleet, simulate

LOST = Unavailable("gone", reason="worker_lost")
NAMED = Unavailable("gone", reason="worker_lost", is_suspect=True)


@pytest.fixture
def crashes() -> Crashes:
    return Crashes()


@pytest.fixture
def record(crashes: Crashes) -> CrashRecord:
    record = CrashRecord()
    crashes.ask(record, pick_request("r1"))
    return record


def pick_request(request_id: str) -> router_pb2.PickRequest:
    return router_pb2.PickRequest(
        request_id=request_id, num_choices=1, poison_fingerprint=request_id.encode()
    )


def told(crashes: Crashes) -> list[bytes]:
    """Fingerprints that the next pick clears."""
    request = pick_request("another")
    crashes.ask(CrashRecord(), request)
    return list(request.harmless_fingerprints)


def test_two_deaths_without_proof_in_between_make_a_request_guilty(crashes, record) -> None:
    crashes.failed(record, NAMED, 0)
    assert (record.is_suspect, record.is_guilty) == (True, False)
    crashes.failed(record, NAMED, NUM_TOKENS_ALONE - 1)
    assert record.is_guilty
    assert told(crashes) == []


def test_a_suspect_that_brought_enough_tokens_starts_anew(crashes, record) -> None:
    crashes.failed(record, NAMED, 0)
    crashes.failed(record, NAMED, NUM_TOKENS_ALONE)
    assert (record.num_deaths, record.is_guilty) == (1, False)
    crashes.failed(record, LOST, NUM_TOKENS_ALONE)
    assert not record.is_suspect


def test_a_suspect_that_ends_well_is_cleared_at_the_router_with_the_next_pick(
    crashes, record
) -> None:
    crashes.failed(record, NAMED, 0)
    crashes.finished(record)
    assert told(crashes) == [b"r1"]
    assert told(crashes) == []
    crashes.finished(record)
    assert told(crashes) == [], "it was no suspect any more"


def test_only_failures_of_the_worker_are_reported_as_such(crashes, record) -> None:
    for reason, is_failure in (("no_room", False), ("worker_lost", True), ("draining", False)):
        crashes.failed(record, Unavailable("x", reason=reason), 0)
        assert record.has_failed == is_failure


def test_a_failure_is_reported_once_however_often_the_next_pick_is_repeated(
    crashes, record
) -> None:
    crashes.failed(record, LOST, 0)
    picks = [pick_request("r1") for _ in range(3)]
    for pick in picks:
        crashes.ask(record, pick)
    assert [pick.has_failed for pick in picks] == [True, False, False]


def test_words_of_others_make_a_request_a_suspect_but_never_guilty(crashes, record) -> None:
    for _ in range(3):
        crashes.picked(record, router_pb2.PickResponse(is_suspect=True))
        crashes.name(["r1"])
        crashes.failed(record, LOST, 0)
    assert record.num_deaths == 1


def test_late_names_are_bounded_and_count_once(crashes) -> None:
    crashes.name(f"r{i}" for i in range(MAX_NAMED + 1))
    for request_id, num_deaths in (("r0", 0), ("r1", 1), ("r1", 0)):
        record = CrashRecord()
        crashes.ask(record, pick_request(request_id))
        crashes.failed(record, LOST, 0)
        assert record.num_deaths == num_deaths


async def core_death(worker: FakeWorker, *suspects: str) -> None:
    died = worker_pb2.CoreDied(suspect_request_ids=suspects)
    await worker.say(worker_pb2.WorkerFrame(core_died=died))


async def submitted(worker: FakeWorker) -> worker_pb2.Submit:
    while not worker.submits:
        await asyncio.sleep(0.001)
    return worker.submits[-1]


def test_a_request_named_by_a_dying_core_computes_by_itself_elsewhere() -> None:
    async def scenario(fleet: Fleet) -> None:
        for worker in fleet.workers.values():
            worker.prefill_s = 1.0
        asking = fleet.tasks.create_task(fleet.chat())
        assert not (await submitted(fleet.workers["w1"])).is_suspect
        await core_death(fleet.workers["w1"], "r1", "another")
        assert (await submitted(fleet.workers["w2"])).is_suspect
        assert (await asking).text() == "Hello there."
        first, second = fleet.router.picked
        assert (first.num_deaths, first.has_failed) == (0, False)
        assert (second.num_deaths, second.has_failed) == (1, True)
        assert first.poison_fingerprint == second.poison_fingerprint

    simulate(scenario)


def test_a_request_that_was_not_named_is_no_suspect() -> None:
    async def scenario(fleet: Fleet) -> None:
        for worker in fleet.workers.values():
            worker.prefill_s = 1.0
        asking = fleet.tasks.create_task(fleet.chat())
        await submitted(fleet.workers["w1"])
        await core_death(fleet.workers["w1"], "another")
        assert not (await submitted(fleet.workers["w2"])).is_suspect
        await asking

    simulate(scenario)


def test_the_second_death_is_reported_and_the_routers_refusal_reaches_the_client() -> None:
    async def scenario(fleet: Fleet) -> None:
        for worker in fleet.workers.values():
            worker.refusal = NAMED
        pick = fleet.router.pick

        async def refuse_killers(
            request: router_pb2.PickRequest, context: CallContext
        ) -> router_pb2.PickResponse:
            if request.num_deaths >= 2:
                raise InvalidRequest("it kills", reason="request_quarantined")
            return await pick(request, context)

        fleet.router.pick = refuse_killers  # type: ignore[method-assign]
        with pytest.raises(BatonError) as error:
            await fleet.chat()
        assert error.value.reason == "request_quarantined"
        assert [pick.num_deaths for pick in fleet.router.picked] == [0, 1]
        assert fleet.record.num_prompt_tokens == 0

    simulate(scenario)


def test_fingerprints_tell_requests_apart_but_not_repeats() -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.complete(prompt="a")
        await fleet.complete(prompt="a")
        await fleet.complete(prompt="b")
        await fleet.complete(prompt="a", max_tokens=5)
        await fleet.complete(prompt="a", seed=5)
        prints = [pick.poison_fingerprint for pick in fleet.router.picked]
        assert prints[0] == prints[1]
        assert len(set(prints)) == 4
        assert all(len(fingerprint) == 32 for fingerprint in prints)

    simulate(scenario)


def test_an_ejected_worker_whose_stream_looks_alive_loses_its_requests_at_once() -> None:
    async def scenario(fleet: Fleet) -> None:
        black_hole = fleet.workers["w1"]
        black_hole.prefill_s = 1e6
        asking = fleet.tasks.create_task(fleet.chat())
        await submitted(black_hole)
        began_s = fleet.clock.now()
        fleet.router.models[0].workers[0].ejected = True
        assert (await asking).text() == "Hello there."
        assert fleet.clock.now() - began_s < 1
        assert fleet.workers["w2"].submits

    simulate(scenario)


def test_a_worker_that_comes_back_after_its_ejection_is_dialled_anew() -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.chat()
        state = fleet.router.models[0].workers[0]
        state.ejected = True
        await asyncio.sleep(1)
        state.ejected = False
        await asyncio.sleep(1)
        await fleet.chat()
        assert fleet.workers["w1"].num_dialled == 2

    simulate(scenario)

"""How requests end when something goes wrong: refusals, losses, deadlines, clients that leave."""

import asyncio

import pytest
from prometheus_client import REGISTRY

from baton.wire.failures import (
    BatonError,
    DeadlineExceeded,
    InternalFailure,
    NoRoom,
    Unavailable,
)
from services.gateway.request.limits import Limits
from tests.unit.gateway.fakes import Fleet, RecordingSink, simulate


def test_a_worker_without_room_is_excluded_and_the_epoch_rises() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.workers["w1"].refusal = NoRoom("full")
        sink = await fleet.chat()
        assert sink.text() == "Hello there."
        assert list(fleet.router.picked[1].exclude_worker_ids) == ["w1"]
        assert fleet.workers["w2"].submits[0].epoch == 2
        # A refusal for room is no attempt (decision 0004).
        assert fleet.record.num_attempts == 1

    simulate(scenario)


def test_attempts_that_fail_are_repeated_at_most_twice() -> None:
    async def scenario(fleet: Fleet) -> None:
        for worker in fleet.workers.values():
            worker.refusal = Unavailable("gone", reason="worker_lost")
        with pytest.raises(Unavailable):
            await fleet.chat()
        assert len(fleet.router.picked) == 3
        assert fleet.record.finish_reason == "worker_lost"
        assert fleet.record.num_output_tokens == 0

    simulate(scenario)


def test_a_request_without_room_goes_back_to_the_queue_until_its_first_token_is_due() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.router.queue_s = 1.0
        fleet.first_token_s = 30.0
        fleet.router.ignores_exclusion = True
        fleet.worker.refusal = NoRoom("full")
        with pytest.raises(BatonError):
            await fleet.chat()
        assert len(fleet.router.picked) == pytest.approx(30, abs=1)
        assert max(len(pick.exclude_worker_ids) for pick in fleet.router.picked) <= 16

    simulate(scenario)


def test_a_worker_lost_before_the_first_token_is_replaced() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.workers["w1"].prefill_s = 60
        task = fleet.tasks.create_task(fleet.chat())
        await asyncio.sleep(1)
        fleet.workers["w1"].cut()
        sink = await task
        assert sink.text() == "Hello there."
        assert fleet.workers["w2"].submits[0].epoch == 2

    simulate(scenario)


def test_a_prefill_worker_whose_handoff_failed_is_the_one_that_is_excluded() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.workers["w1"].refusal = Unavailable("bad blocks", reason="handoff_failed")
        fleet.router.ignores_exclusion = True
        with pytest.raises(Unavailable):
            await fleet.chat()
        assert list(fleet.router.picked[1].exclude_worker_ids) == ["p1"]

    simulate(scenario)


def test_a_prefill_worker_that_takes_nothing_new_is_asked_again_and_has_not_failed() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.first_token_s = 30.0
        fleet.workers["w1"].refusal = Unavailable("it drains", reason="prefill_refused")
        fleet.router.ignores_exclusion = True
        fleet.router.queue_s = 1.0
        with pytest.raises(BatonError):
            await fleet.chat()
        assert len(fleet.router.picked) == pytest.approx(30, abs=1)
        second = fleet.router.picked[1]
        assert list(second.exclude_worker_ids) == ["p1"]
        assert not second.has_failed

    simulate(scenario)


def test_what_a_failed_attempt_computed_does_not_count_as_cached_in_the_next() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.workers["w1"].refusal = Unavailable("gone", reason="worker_lost")
        fleet.workers["w2"].num_cached = 3
        await fleet.chat()
        assert fleet.record.num_attempts == 2
        assert fleet.record.num_cached_tokens == 0

    simulate(scenario)


def test_an_unreachable_worker_is_replaced() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.unreachable.add("w1")
        sink = await fleet.chat()
        assert sink.text() == "Hello there."

    simulate(scenario)


def test_a_client_that_leaves_cancels_the_work_and_is_billed_for_what_was_produced() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = ["x" * 1000]
        sink = RecordingSink()
        task = fleet.tasks.create_task(fleet.chat(sink))
        await sink.started_event.wait()
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(fleet.worker.cancels) == 1
        assert fleet.record.finish_reason == "cancelled"
        assert fleet.record.num_output_tokens == len(sink.text())

    simulate(scenario)


@pytest.mark.parametrize("stage", ["queue", "prefill"])
def test_a_client_that_leaves_before_the_first_token_frees_everything(stage: str) -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.router.queue_s = 100 if stage == "queue" else 0
        fleet.worker.prefill_s = 20
        task = fleet.tasks.create_task(fleet.chat())
        await asyncio.sleep(5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(fleet.worker.cancels) == (stage == "prefill")
        assert fleet.record.num_output_tokens == 0

    simulate(scenario)


def test_no_first_token_in_time_is_a_deadline() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.prefill_s = 1000
        fleet.first_token_s = 30.0
        with pytest.raises(DeadlineExceeded):
            await fleet.chat()
        assert fleet.clock.now() == pytest.approx(30, abs=0.2)
        assert fleet.worker.cancels

    simulate(scenario)


def test_without_a_time_of_its_client_a_slow_first_token_is_waited_for() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.prefill_s = 100
        sink = await fleet.chat()
        assert sink.reason() == "stop"

    simulate(scenario)


def test_a_gap_between_tokens_beyond_the_limit_is_a_deadline() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.step_s = 50
        with pytest.raises(DeadlineExceeded):
            await fleet.chat()
        assert fleet.record.finish_reason == "deadline_exceeded"

    simulate(scenario, limits=Limits(token_gap_s=20))


def test_the_total_deadline_ends_a_running_answer() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = ["x" * 1000]
        fleet.worker.step_s = 1
        incoming = fleet.incoming(
            "/v1/chat/completions",
            {"model": "demo", "messages": [{"role": "user", "content": "hi"}]},
            deadline_s=100.0,
        )
        with pytest.raises(DeadlineExceeded):
            await fleet.gateway.pipeline.run(incoming, RecordingSink())
        assert fleet.record.finish_reason == "deadline_exceeded"
        assert 90 <= fleet.record.num_output_tokens <= 101

    simulate(scenario)


def test_a_settle_that_is_not_acknowledged_goes_to_the_outbox_and_is_replayed() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.quota.settle_failure = Unavailable("down")
        sink = await fleet.chat()
        assert sink.usage is not None
        assert len(fleet.files.waiting) == 1
        assert not fleet.quota.settled
        fleet.quota.settle_failure = None
        await asyncio.sleep(2)
        assert fleet.record.num_output_tokens == 13
        assert fleet.files.waiting == []

    simulate(scenario)


def test_a_slow_settle_is_waited_for_25_ms_only() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.quota.settle_delay_s = 3
        before = fleet.clock.now()
        await fleet.chat()
        # tokenizer artifact 10 ms, prefill 50 ms, 13 tokens, settle 25 ms
        assert fleet.clock.now() - before == pytest.approx(0.01 + 0.05 + 0.13 + 0.025, abs=0.005)
        await asyncio.sleep(10)
        assert fleet.record.request_id == "r1"

    simulate(scenario)


def test_a_refusal_of_the_router_does_not_wait_for_its_settle() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.quota.settle_delay_s = 0.02
        fleet.router.failure = Unavailable("overloaded", reason="overloaded")
        began_s = fleet.clock.now()
        with pytest.raises(Unavailable):
            await fleet.chat()
        # The tokenizer's artifact takes 10 ms.
        assert fleet.clock.now() - began_s == pytest.approx(0.01)
        assert not fleet.quota.settled
        await fleet.gateway.outbox.flush(timeout_s=1.0)
        assert fleet.record.finish_reason == "overloaded"

    simulate(scenario)


def test_the_final_event_comes_after_the_settle() -> None:
    async def scenario(fleet: Fleet) -> None:
        settled_at_finish: list[int] = []

        class Sink(RecordingSink):
            async def finished(self, usage, head) -> None:
                settled_at_finish.append(len(fleet.quota.settled))

        await fleet.chat(Sink())
        assert settled_at_finish == [1]

    simulate(scenario)


async def _outcome(fleet: Fleet, sink: RecordingSink) -> BatonError | None:
    try:
        await fleet.chat(sink)
    except BatonError as error:
        return error
    return None


def test_a_client_that_leaves_while_its_request_settles_is_billed_all_the_same() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.quota.settle_delay_s = 0.02
        sink = RecordingSink()
        task = fleet.tasks.create_task(fleet.chat(sink))
        await sink.started_event.wait()
        while not sink.batches[-1:] or sink.reason() is None:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.sleep(3)
        assert fleet.record.num_output_tokens == 13

    simulate(scenario)


def test_a_client_that_leaves_while_quota_is_asked_frees_what_quota_may_hold() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.quota.reserve_delay_s = 0.5
        task = fleet.tasks.create_task(fleet.chat())
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.sleep(3)
        assert fleet.record.request_id == "r1"
        assert fleet.record.num_prompt_tokens + fleet.record.num_output_tokens == 0

    simulate(scenario)


@pytest.mark.parametrize("failure", [DeadlineExceeded("no answer"), Unavailable("it died")])
def test_a_reservation_without_an_answer_is_freed_when_its_request_is_refused(
    failure: BatonError,
) -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.quota.principal.limits.hard_budget = True
        fleet.quota.reserve_failure = failure
        with pytest.raises(Unavailable):
            await fleet.chat()
        await asyncio.sleep(3)
        assert fleet.record.num_prompt_tokens == 0

    simulate(scenario)


def test_a_prompt_that_no_worker_read_costs_nothing() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.router.queue_s = 5.0
        task = fleet.tasks.create_task(fleet.chat())
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.sleep(0.1)
        fleet.router.queue_s = 0.0
        fleet.router.failure = Unavailable("overloaded", reason="overloaded")
        with pytest.raises(Unavailable):
            await fleet.chat()
        await asyncio.sleep(0.01)
        assert [record.num_prompt_tokens for record in fleet.quota.settled] == [0, 0]

    simulate(scenario)


def test_a_client_that_leaves_during_prefill_pays_for_its_prompt() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.prefill_s = 5.0
        task = fleet.tasks.create_task(fleet.chat())
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.sleep(1)
        assert fleet.record.num_prompt_tokens > 0
        assert fleet.record.num_output_tokens == 0

    simulate(scenario)


def test_a_client_that_leaves_before_its_worker_heard_of_it_pays_nothing() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.mute.add("w1")
        task = fleet.tasks.create_task(fleet.chat())
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.sleep(1)
        assert fleet.record.num_prompt_tokens == 0

    simulate(scenario)


@pytest.mark.parametrize("cancelled_after_ms", range(0, 320, 4))
def test_a_client_that_leaves_at_any_moment_leaves_one_usage_record_and_nothing_else(
    cancelled_after_ms: int,
) -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.quota.reserve_delay_s = fleet.router.queue_s = fleet.quota.settle_delay_s = 0.02
        task = fleet.tasks.create_task(fleet.chat())
        await asyncio.sleep(cancelled_after_ms / 1000 + 0.0005)
        task.cancel()
        await asyncio.sleep(5)
        assert len({r.request_id for r in fleet.quota.settled}) == len(fleet.quota.reserved)
        assert {r.SerializeToString() for r in fleet.quota.settled[1:]} <= {
            r.SerializeToString() for r in fleet.quota.settled[:1]
        }
        assert not fleet.gateway.leases._leases
        assert not any(link.num_open for link in fleet.gateway.links._links.values())
        assert not fleet.gateway.outbox.num_waiting

    simulate(scenario)


def test_a_bug_is_answered_and_counted_as_internal_and_logged_with_its_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.router.failure = KeyError("the text of a user")
        with pytest.raises(InternalFailure):
            await fleet.chat()
        assert fleet.record.finish_reason == "internal"

    labels = {"model_name": "demo", "reason": "internal"}
    before = REGISTRY.get_sample_value("baton_gateway_failed_requests_total", labels) or 0
    simulate(scenario)
    assert REGISTRY.get_sample_value("baton_gateway_failed_requests_total", labels) == before + 1
    (line,) = [record for record in caplog.records if record.msg == "request_failed"]
    told = line.baton_fields  # type: ignore[attr-defined]
    assert (told["request_id"], told["kind"]) == ("r1", "KeyError")
    assert "pick" in told["places"][-1]
    assert "user" not in f"{told} {line.exc_info}"

"""Timeouts from headers, as remaining time through every hop; and what leaving clients measure."""

import asyncio
import json
import math
from typing import Any

import pytest

from baton.wire.failures import DeadlineExceeded
from services.gateway import instruments
from tests.unit.gateway.fakes import Fleet, RecordingSink, simulate
from tests.unit.gateway.test_app import CHAT, Client, app_of, serve


def asking(timeouts: dict[str, str], **fields: Any) -> Client:
    client = Client(CHAT | fields)
    client.scope["headers"] += [(name.encode(), value.encode()) for name, value in timeouts.items()]
    return client


def error_of(client: Client) -> dict[str, Any]:
    return json.loads(client.body)["error"]


@pytest.mark.parametrize(
    "header", ["x-request-timeout-s", "x-first-token-timeout-s", "x-token-gap-timeout-s"]
)
@pytest.mark.parametrize(("value", "status"), [("-1", 400), ("soon", 400), ("0", 504)])
def test_a_timeout_that_cannot_be_kept_is_refused_at_once(
    header: str, value: str, status: int
) -> None:
    async def scenario(fleet: Fleet) -> None:
        client = asking({header: value})
        await serve(app_of(fleet), client)
        assert client.status == status
        assert error_of(client)["message"].startswith(header)
        assert not fleet.worker.submits

    simulate(scenario)


def test_no_first_token_in_the_time_that_was_asked_for_is_a_504() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.prefill_s = 20
        client = asking({"x-first-token-timeout-s": "2.5"})
        before = fleet.clock.now()
        await serve(app_of(fleet), client)
        assert fleet.clock.now() - before == pytest.approx(2.5, abs=0.1)
        assert client.status == 504
        assert error_of(client)["code"] == "deadline_exceeded"
        assert fleet.worker.cancels

    simulate(scenario)


def test_the_message_names_the_time_that_was_asked_for() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.prefill_s = 20
        client = asking({"x-request-timeout-s": "0.4"})
        await serve(app_of(fleet), client)
        assert error_of(client)["message"] == "not finished within 0.4 s"

    simulate(scenario)


def test_a_first_token_that_comes_in_the_time_that_was_asked_for_is_delivered() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.prefill_s = 50
        client = asking({"x-first-token-timeout-s": "60"})
        await serve(app_of(fleet), client)
        assert client.events[-1] == "[DONE]"

    simulate(scenario)


def test_a_gap_after_the_first_token_is_one_error_event_and_no_end() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts, fleet.worker.step_s = ["x" * 100], 3
        client = asking({"x-token-gap-timeout-s": "1"})
        await serve(app_of(fleet), client)
        assert client.status == 200
        assert json.loads(client.events[-1])["error"]["code"] == "deadline_exceeded"
        assert "[DONE]" not in client.events

    simulate(scenario)


def test_every_hop_gets_what_is_left_and_never_less_than_the_request_has() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.router.queue_s = 1
        client = asking({"x-request-timeout-s": "8"})
        await serve(app_of(fleet), client)
        [submit] = fleet.worker.submits
        assert submit.deadline_ms == pytest.approx(7000, abs=50)
        assert fleet.tokenizer.contexts[0].deadline_s == pytest.approx(8.05, abs=0.05)
        assert fleet.router.contexts[0].deadline_s == pytest.approx(8, abs=0.05)

    simulate(scenario)


@pytest.mark.parametrize(("stage", "phase"), [("queue", "pick"), ("prefill", "prefill")])
def test_leaving_is_measured_by_the_stage_that_it_ends(stage: str, phase: str) -> None:
    def count() -> float:
        samples = instruments.GATEWAY_CANCEL_SECONDS.labels(phase).collect()[0].samples
        return sum(s.value for s in samples if s.name.endswith("_count"))

    async def scenario(fleet: Fleet) -> None:
        before = count()
        fleet.router.queue_s = 20 if stage == "queue" else 0
        fleet.worker.prefill_s = 20
        client = Client(CHAT)
        task = fleet.tasks.create_task(serve(app_of(fleet), client))
        await asyncio.sleep(1)
        client.gone.set()
        await task
        assert count() == before + 1

    simulate(scenario)


def test_a_deadline_whose_timer_is_early_is_a_deadline_on_the_bill_too() -> None:
    """uvloop counts a timer from the beginning of the turn that sets it."""

    async def scenario(fleet: Fleet) -> None:
        fleet.worker.step_s = 1
        body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}
        incoming = fleet.incoming("/v1/chat/completions", body, deadline_s=100.0)
        running = asyncio.create_task(fleet.gateway.pipeline.run(incoming, RecordingSink()))
        await asyncio.sleep(1)
        trace = fleet.gateway.auditor.running_one(incoming.request_id)
        assert trace is not None
        assert trace.timeout is not None
        trace.timeout.reschedule(-math.inf)
        with pytest.raises(DeadlineExceeded):
            await running
        assert fleet.record.finish_reason == "deadline_exceeded"

    simulate(scenario)

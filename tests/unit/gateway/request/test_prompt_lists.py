"""Legacy completions with several prompts, each of which is a request of its own."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from baton.wire.failures import BatonError, Cancelled, InvalidRequest, LimitExceeded
from services.gateway.request import submission
from tests.unit.gateway.fakes import Fleet, RecordingSink, simulate


def test_choices_are_numbered_on_from_prompt_to_prompt() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = ["one", "two"]
        prompts = ["a ", list(b"b "), "c "]
        sink = await fleet.complete(prompt=prompts, n=2, echo=True)
        texts = [sink.text(choice) for choice in range(6)]
        assert texts == ["a one", "a two", "b one", "b two", "c one", "c two"]
        assert {sink.reason(choice) for choice in range(6)} == {"stop"}
        assert sink.identity is not None
        assert (sink.identity.request_id, sink.identity.num_choices) == ("r1", 6)

    simulate(scenario)


def test_usage_is_the_sum_and_each_prompt_is_reserved_and_settled_for_itself() -> None:
    async def scenario(fleet: Fleet) -> None:
        sink = await fleet.complete(prompt=["a", "bcd"], max_tokens=3)
        assert sink.usage is not None
        assert (sink.usage.num_prompt_tokens, sink.usage.num_output_tokens) == (4, 6)
        settled = {each.request_id: each.num_prompt_tokens for each in fleet.quota.settled}
        assert settled == {"r1.0": 1, "r1.1": 3}
        assert {each.request_id for each in fleet.quota.reserved} == {"r1.0", "r1.1"}
        assert not fleet.gateway.auditor.running()

    simulate(scenario)


def test_prompts_run_beside_each_other_a_few_at_once() -> None:
    async def scenario(fleet: Fleet) -> None:
        most = 0

        async def look() -> None:
            nonlocal most
            while True:
                most = max(most, fleet.worker.num_prefilling)
                await asyncio.sleep(0.01)

        looking = fleet.tasks.create_task(look())
        await fleet.complete(prompt=["a"] * 20)
        assert most == 8
        most = 0
        fleet.quota.principal.limits.concurrency = 2
        await asyncio.sleep(6)
        await fleet.complete(prompt=["a"] * 6)
        assert most == 2
        looking.cancel()

    simulate(scenario)


def test_a_long_list_has_no_more_tasks_than_prompts_that_run() -> None:
    async def scenario(fleet: Fleet) -> None:
        before = len(asyncio.all_tasks())
        body = {"model": "demo", "prompt": ["a"] * 256}
        incoming = fleet.incoming("/v1/completions", body)
        running = fleet.tasks.create_task(fleet.gateway.pipeline.run(incoming, RecordingSink()))
        await asyncio.sleep(0.03)
        assert 16 < len(asyncio.all_tasks()) - before < 64
        running.cancel()

    simulate(scenario)


def test_a_prompt_that_fails_ends_the_others_and_is_named() -> None:
    async def scenario(fleet: Fleet) -> None:
        sink = RecordingSink()
        fleet.worker.ends = False
        fleet.worker.texts = ["x" * 100]
        body = {"model": "demo", "prompt": ["a", "b" * 5000], "max_tokens": 100}
        with pytest.raises(InvalidRequest) as caught:
            await fleet.gateway.pipeline.run(fleet.incoming("/v1/completions", body), sink)
        assert caught.value.param == "prompt[1]"
        assert caught.value.reason == "context_length_exceeded"
        assert sink.usage is None
        outcomes = {each.request_id: each.finish_reason for each in fleet.quota.settled}
        assert outcomes.get("r1.0", "cancelled") == "cancelled"

    simulate(scenario)


def test_another_failure_is_that_of_the_whole_request() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.quota.reserve_failure = LimitExceeded("too many")
        with pytest.raises(LimitExceeded) as caught:
            await fleet.complete(prompt=["a", "b"])
        assert caught.value is fleet.quota.reserve_failure

    simulate(scenario)


def test_a_client_that_leaves_ends_all_prompts() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = ["x" * 1000]
        body = {"model": "demo", "prompt": ["a", "b", "c"], "max_tokens": 1000}
        running = fleet.tasks.create_task(
            fleet.gateway.pipeline.run(fleet.incoming("/v1/completions", body), RecordingSink())
        )
        await asyncio.sleep(1)
        running.cancel()
        await asyncio.sleep(1)
        assert {each.finish_reason for each in fleet.quota.settled} == {"cancelled"}
        assert len(fleet.quota.settled) == len(fleet.worker.cancels) == 3

    simulate(scenario)


def test_a_list_is_cancelled_by_its_id_and_no_prompt_alone() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = ["x" * 1000]
        body = {"model": "demo", "prompt": ["a", "b"], "max_tokens": 1000}
        pipeline = fleet.gateway.pipeline
        incoming = fleet.incoming("/v1/completions", body)
        running = fleet.tasks.create_task(ended(pipeline.run(incoming, RecordingSink())))
        await asyncio.sleep(1)
        assert not pipeline.cancel("r1.0", "acme")
        assert pipeline.cancel("r1", "acme")
        assert isinstance(await running, Cancelled)
        assert len(fleet.quota.settled) == 2

    simulate(scenario)


async def ended(running: Coroutine[Any, Any, None]) -> BatonError | None:
    """The failure of a request."""
    try:
        await running
    except BatonError as error:
        return error
    return None


def test_the_prompts_share_the_room_for_logprobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "MAX_PROMPT_LOGPROBS", 20)

    async def scenario(fleet: Fleet) -> None:
        scored = {"echo": True, "logprobs": 1, "max_tokens": 0}
        sink = await fleet.complete(prompt=["12345", "6"], **scored)
        assert [len(sink.logprobs(choice)) for choice in range(2)] == [5, 1]
        with pytest.raises(InvalidRequest) as caught:
            await fleet.complete(prompt=["123456", "7"], **scored)
        assert caught.value.param == "echo"

    simulate(scenario)

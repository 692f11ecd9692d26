"""A small prompt of a key with plenty left is tokenized while its reservation is made."""

import asyncio

import pytest

from baton.wire.failures import InvalidRequest, LimitExceeded, Unavailable
from baton.wire.v1 import failure_pb2
from services.gateway.request.pipeline import MAX_EARLY_BYTES
from tests.unit.gateway.fakes import Fleet, simulate

CALL_S = 0.1


async def first_token_s(fleet: Fleet, content: str = "hi") -> float:
    """The time to the first token where each of the two calls takes CALL_S."""
    began_s = fleet.clock.now()
    sink = await fleet.chat(messages=[{"role": "user", "content": content}])
    assert sink.head is not None
    stages = sink.head.stages
    assert sum(stages.values()) == pytest.approx(fleet.clock.now() - began_s)
    return stages["reserve"] + stages["tokenize"]


def slow(fleet: Fleet) -> None:
    fleet.quota.reserve_delay_s = fleet.tokenizer.delay_s = CALL_S


def with_left(num_requests: int, num_tokens: int) -> failure_pb2.LimitState:
    return failure_pb2.LimitState(
        limit_requests=100,
        remaining_requests=num_requests,
        limit_tokens=10_000,
        remaining_tokens=num_tokens,
    )


def test_the_second_prompt_of_a_key_does_not_wait_for_its_reservation() -> None:
    async def scenario(fleet: Fleet) -> None:
        assert await first_token_s(fleet) == pytest.approx(2 * CALL_S)
        assert await first_token_s(fleet) == pytest.approx(CALL_S)

    simulate(scenario, prepare=slow)


@pytest.mark.parametrize(("num_requests", "num_tokens"), [(49, 9000), (90, 4999)])
def test_a_key_with_less_than_half_of_its_minute_left_waits(
    num_requests: int, num_tokens: int
) -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.quota.limits = with_left(90, 9000)
        await first_token_s(fleet)
        fleet.quota.limits = with_left(num_requests, num_tokens)
        assert await first_token_s(fleet) == pytest.approx(CALL_S)
        assert await first_token_s(fleet) == pytest.approx(2 * CALL_S)

    simulate(scenario, prepare=slow)


def test_a_large_prompt_waits_for_its_reservation() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.router.models[0].max_model_len = 100_000
        await asyncio.sleep(0.3)
        await first_token_s(fleet)
        content = "word " * (MAX_EARLY_BYTES // 5)
        assert await first_token_s(fleet, content) == pytest.approx(2 * CALL_S)

    simulate(scenario, prepare=slow)


def test_a_refusal_ends_the_call_to_the_tokenizer_and_the_next_prompt_waits() -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.chat()
        fleet.tokenizer.delay_s = 5.0
        fleet.quota.reserve_failure = LimitExceeded("too many", retry_after_s=1.0)
        began_s, num_tasks = fleet.clock.now(), len(asyncio.all_tasks())
        for _ in range(2):
            with pytest.raises(LimitExceeded):
                await fleet.chat()
        assert fleet.clock.now() == began_s
        assert len(asyncio.all_tasks()) == num_tasks
        assert len(fleet.tokenizer.encoded) <= 2

    simulate(scenario)


def test_the_failure_of_the_reservation_goes_before_that_of_the_tokenizer() -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.chat()
        fleet.quota.reserve_failure = LimitExceeded("too many", retry_after_s=1.0)
        fleet.tokenizer.failure = Unavailable("no tokenizer")
        with pytest.raises(LimitExceeded):
            await fleet.chat()
        assert len(fleet.quota.settled) == 1

    simulate(scenario)


def test_a_prompt_that_the_tokenizer_refuses_settles_its_reservation() -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.chat()
        fleet.quota.reserve_delay_s = CALL_S
        fleet.tokenizer.failure = InvalidRequest("too long")
        with pytest.raises(InvalidRequest):
            await fleet.chat()
        assert fleet.quota.settled[-1].finish_reason == "invalid_value"

    simulate(scenario)


def test_a_request_that_is_cancelled_leaves_no_call_to_the_tokenizer() -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.chat()
        fleet.tokenizer.delay_s = fleet.quota.reserve_delay_s = 5.0
        num_tasks = len(asyncio.all_tasks())
        request = asyncio.create_task(fleet.chat())
        await asyncio.sleep(1)
        request.cancel()
        await asyncio.wait([request])
        assert request.cancelled()
        assert len(asyncio.all_tasks()) == num_tasks

    simulate(scenario)

"""Refusals of quota that still hold: no work is done for what they forbid."""

import asyncio

import pytest

from baton.testing.virtual_clock import VirtualClock
from baton.wire.failures import LimitExceeded
from baton.wire.v1 import failure_pb2
from services.gateway.tenants.refusals import LARGE_BYTES, PromptSize, Refusals
from tests.unit.gateway.fakes import Fleet, simulate

SMALL = PromptSize(num_bytes=100, num_tokens=30)
LARGE = PromptSize(num_bytes=2 * LARGE_BYTES, num_tokens=8000)


def no_requests() -> LimitExceeded:
    """60 requests a minute: half a request is there, the next is whole in half a second."""
    limits = failure_pb2.LimitState(
        limit_requests=60, remaining_requests=0, reset_requests_ms=59_500
    )
    return LimitExceeded("too many", retry_after_s=7.0, limits=limits)


def no_tokens() -> LimitExceeded:
    limits = failure_pb2.LimitState(limit_tokens=10_000, remaining_tokens=3000)
    return LimitExceeded("too many", retry_after_s=30.0, limits=limits)


def test_a_key_without_requests_has_none_until_the_next_has_come_back() -> None:
    clock = VirtualClock()
    refusals = Refusals(clock)
    refusals.note("k", SMALL, no_requests())
    with pytest.raises(LimitExceeded) as caught:
        refusals.check("k")
    assert caught.value.retry_after_s == pytest.approx(0.5)
    assert caught.value.limits == no_requests().limits
    refusals.check("another")
    clock.advance(0.5)
    refusals.check("k")


def test_a_large_prompt_that_had_no_room_is_not_read_again_before_its_time() -> None:
    clock = VirtualClock()
    refusals = Refusals(clock)
    refusals.note("k", LARGE, no_tokens())
    refusals.check("k")
    refusals.check("k", LARGE.num_bytes - 1)
    with pytest.raises(LimitExceeded) as caught:
        refusals.check("k", LARGE.num_bytes)
    assert caught.value.retry_after_s == pytest.approx(30)
    clock.advance(30)
    refusals.check("k", LARGE.num_bytes)


def test_a_small_prompt_always_asks_quota_for_tokens() -> None:
    refusals = Refusals(VirtualClock())
    refusals.note("k", PromptSize(num_bytes=100, num_tokens=8000), no_tokens())
    refusals.check("k", 100)


def test_a_refusal_for_other_reasons_holds_for_nothing() -> None:
    refusals = Refusals(VirtualClock())
    limits = failure_pb2.LimitState(limit_tokens=10_000, remaining_tokens=9000)
    refusals.note("k", LARGE, LimitExceeded("slots", retry_after_s=1.0, limits=limits))
    refusals.check("k", LARGE.num_bytes)
    spent = LimitExceeded("spent", reason="insufficient_quota", retry_after_s=9e5, limits=limits)
    refusals.note("k", LARGE, spent)
    refusals.check("k", LARGE.num_bytes)


def test_a_flood_over_the_requests_per_minute_is_never_tokenized() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.quota.reserve_failure = no_requests()
        for _ in range(100):
            with pytest.raises(LimitExceeded):
                await fleet.chat()
        assert not fleet.tokenizer.encoded
        fleet.quota.reserve_failure = None
        await asyncio.sleep(0.5)
        assert (await fleet.chat()).text() == "Hello there."

    simulate(scenario)


def test_a_flood_of_large_prompts_over_the_tokens_per_minute_is_never_tokenized() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.router.models[0].max_model_len = 100_000
        await asyncio.sleep(0.3)
        fleet.quota.reserve_failure = no_tokens()
        for _ in range(20):
            with pytest.raises(LimitExceeded):
                await fleet.complete(prompt="word " * 4000)
        assert not fleet.tokenizer.encoded
        fleet.quota.reserve_failure = None
        await fleet.complete(prompt="hi")

    simulate(scenario)


def test_a_refusal_for_one_models_limit_forbids_no_other_request() -> None:
    refusals = Refusals(VirtualClock())
    for error, size in ((no_requests(), SMALL), (no_tokens(), LARGE)):
        assert error.limits is not None
        error.limits.requests_scope = error.limits.tokens_scope = "key, model large"
        refusals.note("k", size, error)
        refusals.check("k", LARGE.num_bytes)

"""Requests are counted, with an estimate of the prompt, before the prompt is tokenized."""

import asyncio

import pytest

from baton.wire.failures import InvalidRequest, LimitExceeded, Unavailable
from baton.wire.v1 import failure_pb2
from services.gateway.openai.generation import GenerationRequest, PlainText, PromptTokens
from services.gateway.request.prompt_estimate import PromptEstimate, PromptEstimates
from services.gateway.routing.models import ServedModel
from tests.unit.gateway.fakes import Fleet, simulate

MODEL = ServedModel("fp", "demo", "main", 16, 1000, 50_000, frozenset(), 1)
LONGEST_TOKEN = 5


def text(num_bytes: int) -> GenerationRequest:
    return GenerationRequest("completions", "demo", PlainText("x" * num_bytes))


def full_minute() -> failure_pb2.LimitState:
    """A minute of 6000 tokens as it is after a reservation of 1000."""
    return failure_pb2.LimitState(
        limit_tokens=6000, remaining_tokens=5000, reset_tokens_ms=10_000, tokens_scope="key"
    )


def test_a_prompt_of_unknown_kind_has_a_token_a_byte() -> None:
    assert PromptEstimates().estimate(text(200), MODEL, LONGEST_TOKEN) == PromptEstimate(200, 10)


def test_text_that_is_not_ascii_is_measured_in_bytes() -> None:
    request = GenerationRequest("completions", "demo", PlainText("\u6587" * 100))
    assert PromptEstimates().estimate(request, MODEL, LONGEST_TOKEN).num_tokens == 300


def test_an_estimate_follows_the_prompts_that_were_tokenized() -> None:
    estimates = PromptEstimates()
    estimates.note(text(400), MODEL, 100)
    assert estimates.estimate(text(400), MODEL, LONGEST_TOKEN).num_tokens == 113
    estimates.note(text(400), MODEL, 200)
    assert estimates.estimate(text(400), MODEL, LONGEST_TOKEN).num_tokens == 225
    for _ in range(400):
        estimates.note(text(400), MODEL, 100)
    assert estimates.estimate(text(400), MODEL, LONGEST_TOKEN).num_tokens == 113
    assert estimates.estimate(text(40), MODEL, LONGEST_TOKEN).num_tokens == 40


def test_an_estimate_leaves_room_for_one_token_of_the_answer() -> None:
    assert PromptEstimates().estimate(text(5000), MODEL, LONGEST_TOKEN).num_tokens == 999


def test_a_prompt_that_its_size_alone_forbids_is_refused() -> None:
    estimates = PromptEstimates()
    assert estimates.estimate(text(19_999), MODEL, LONGEST_TOKEN).fewest == 999
    with pytest.raises(InvalidRequest, match="at least 1000 tokens") as caught:
        estimates.estimate(text(20_000), MODEL, LONGEST_TOKEN)
    assert caught.value.reason == "context_length_exceeded"
    assert estimates.estimate(text(20_000), MODEL, longest_token=0).fewest == 1


def test_token_ids_are_counted_exactly() -> None:
    ids = GenerationRequest("completions", "demo", PromptTokens(bytes(400)))
    assert PromptEstimates().estimate(ids, MODEL, LONGEST_TOKEN) == PromptEstimate(100)
    over = GenerationRequest("completions", "demo", PromptTokens(bytes(4000)))
    with pytest.raises(InvalidRequest, match="at least 1000 tokens"):
        PromptEstimates().estimate(over, MODEL, LONGEST_TOKEN)


def test_a_usual_request_asks_quota_once_and_its_headers_are_exact() -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.complete(prompt="x" * 200)
        fleet.quota.limits = full_minute()
        sink = await fleet.complete(prompt="x" * 200)
        first, second = fleet.quota.reserved
        assert (first.num_prompt_tokens, second.num_prompt_tokens) == (200, 225)
        assert sink.head is not None
        assert sink.head.limits is not None
        assert sink.head.limits.remaining_tokens == 5025
        assert sink.head.limits.reset_tokens_ms == 9750
        assert fleet.quota.settled[-1].num_prompt_tokens == 200

    simulate(scenario)


def test_an_estimate_that_was_too_low_is_replaced_by_the_exact_number() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.quota.holds_fewest = True
        assert (await fleet.complete(prompt="x" * 200)).text() == "Hello there."
        first, second = fleet.quota.reserved
        assert (first.min_prompt_tokens, first.replaces_estimate) == (10, False)
        assert (second.min_prompt_tokens, second.replaces_estimate) == (0, True)
        assert (second.request_id, second.num_prompt_tokens) == (first.request_id, 200)
        assert len(fleet.quota.settled) == 1

    simulate(scenario)


def test_a_prompt_that_turns_out_too_large_for_its_minute_is_counted_and_costs_no_tokens() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.quota.holds_fewest = True
        fleet.quota.exact_failure = LimitExceeded("too many", retry_after_s=3.0)
        with pytest.raises(LimitExceeded):
            await fleet.complete(prompt="x" * 200)
        assert not fleet.router.picked
        record = fleet.record
        assert record.finish_reason == "rate_limit_exceeded"
        assert (record.num_prompt_tokens, record.num_output_tokens) == (0, 0)

    simulate(scenario)


def test_a_tokenizer_that_fails_leaves_no_tokens_on_the_bill() -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.complete()
        fleet.tokenizer.failure = InvalidRequest("never mind", reason="run_too_long")
        with pytest.raises(InvalidRequest):
            await fleet.complete()
        record = fleet.quota.settled[-1]
        assert (record.finish_reason, record.num_prompt_tokens) == ("run_too_long", 0)

    simulate(scenario)


def test_much_that_was_held_too_much_goes_back_at_once() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.step_s = 0.05
        fleet.quota.limits = full_minute()
        running = asyncio.create_task(fleet.complete(prompt="é" * 100))
        await asyncio.sleep(0.1)
        assert not fleet.quota.renewals, "200 bytes are 200 tokens of this model"
        await running
        fleet.tokenizer.tokens_per_byte = 0.25
        running = asyncio.create_task(fleet.complete(prompt="x" * 200))
        await asyncio.sleep(0.1)
        (renewal,) = fleet.quota.renewals
        assert (renewal.request_id, renewal.num_prompt_tokens) == ("r2", 50)
        await running

    simulate(scenario)


def test_a_lease_is_not_renewed_before_its_prompt_is_tokenized() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.step_s = 1.0
        fleet.tokenizer.delay_s = 7.0
        running = asyncio.create_task(fleet.complete(prompt="x" * 200))
        await asyncio.sleep(6.9)
        assert fleet.quota.reserved
        assert not fleet.quota.renewals
        await asyncio.sleep(4.0)
        assert {each.num_prompt_tokens for each in fleet.quota.renewals} == {200}
        await running

    simulate(scenario)


def test_a_quota_that_goes_away_meanwhile_leaves_the_rest_to_the_own_buckets() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.quota.holds_fewest = True
        fleet.quota.exact_failure = Unavailable("quota is away", reason="quota_unavailable")
        assert (await fleet.complete(prompt="x" * 200)).text() == "Hello there."
        fleet.quota.principal.limits.hard_budget = True
        fleet.quota.principal.limits.budget_tokens = 10_000
        await asyncio.sleep(6)
        with pytest.raises(Unavailable):
            await fleet.complete(prompt="x" * 200)
        assert fleet.quota.settled[-1].num_prompt_tokens == 0

    simulate(scenario)

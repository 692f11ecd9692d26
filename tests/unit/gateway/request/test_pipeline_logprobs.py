"""Logprobs, echo and the rules for tokens on their way through the pipeline."""

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from baton.wire.failures import InternalFailure, InvalidRequest
from services.gateway.openai.generation import GenerationRequest, PromptTokens
from services.gateway.request import submission
from services.gateway.request.limits import Limits
from services.gateway.request.pipeline import LARGE_PROMPT_TOKENS
from services.gateway.text.detokenize import PIECE_TOKENS, Artifacts, Decoder
from services.gateway.text.prompt_echo import PromptEcho
from tests.unit.gateway.fake_clients import MODEL_FP
from tests.unit.gateway.fakes import (
    FakeTokenizer,
    Fleet,
    RecordingSink,
    inline,
    model_state,
    simulate,
)


def test_the_worker_gets_every_rule_for_tokens() -> None:
    async def scenario(fleet: Fleet) -> None:
        rules = {
            "min_p": 0.5, "presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 2,
            "logit_bias": {"7": -2}, "min_tokens": 3, "top_k": 4, "stop_token_ids": [9],
            "ignore_eos": True,
        }  # fmt: skip
        await fleet.chat(**rules)
        await fleet.chat()
        with_rules, without = (submit.sampling for submit in fleet.worker.submits)
        for name, value in rules.items():
            if name not in ("logit_bias", "stop_token_ids"):
                assert getattr(with_rules, name) == value, name
        assert dict(with_rules.logit_bias) == {7: -2}
        assert list(with_rules.stop_token_ids) == [9]
        assert (without.repetition_penalty, without.num_logprobs) == (1, -1)
        assert without.num_prompt_logprobs == -1

    simulate(scenario)


def test_the_text_of_a_stop_token_is_no_part_of_the_answer() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = ["abc"]
        sink = await fleet.chat(stop_token_ids=[ord("c")])
        assert sink.text() == "ab"

    simulate(scenario)


def test_logprobs_of_every_token_but_the_end_reach_the_sink() -> None:
    async def scenario(fleet: Fleet) -> None:
        sink = await fleet.chat(logprobs=True, top_logprobs=2, n=2)
        for choice in range(2):
            told = sink.logprobs(choice)
            assert b"".join(entry.token for entry in told) == b"Hello there."
            assert [entry.text_offset for entry in told] == list(range(12))
            assert told[0].top[1].token == b"I"
        assert fleet.worker.submits[0].sampling.num_logprobs == 2

    simulate(scenario)


def test_an_echo_comes_first_and_moves_the_offsets() -> None:
    async def scenario(fleet: Fleet) -> None:
        sink = await fleet.complete(prompt="Söy ", echo=True, logprobs=1, n=2, max_tokens=99)
        for choice in range(2):
            told = sink.logprobs(choice)
            assert sink.text(choice) == "Söy Hello there."
            assert b"".join(entry.token for entry in told).decode() == "Söy Hello there."
            assert [entry.text_offset for entry in told[:6]] == [0, 1, 2, 2, 3, 4]
            assert told[0].logprob is None
            assert [entry.logprob for entry in told[1:5]] == [-0.5, -1.0, -1.5, -2.0]
        [submit] = fleet.worker.submits
        assert submit.sampling.num_prompt_logprobs == 1
        assert fleet.router.picked[0].local_prefill
        assert list(fleet.router.picked[0].needs) == ["n", "prompt_logprobs"]

    simulate(scenario)


def test_behind_an_echo_the_token_that_ends_the_answer_has_an_entry_without_text() -> None:
    """lm-eval asks for one token, and leaves out the last entry to get those of the prompt."""

    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = [""]
        sink = await fleet.complete(prompt="ab", echo=True, logprobs=1, max_tokens=1)
        assert [entry.token for entry in sink.logprobs()] == [b"a", b"b", b""]
        assert sink.text() == "ab"
        plain = await fleet.complete(prompt="ab", logprobs=1, max_tokens=1)
        assert plain.logprobs() == []

    simulate(scenario)


def test_a_long_echo_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(fleet: Fleet) -> None:
        options = {"echo": True, "logprobs": 1, "n": 2, "max_tokens": 9}
        at_once = await fleet.complete(prompt="Söy bean", **options)
        monkeypatch.setattr("services.gateway.text.prompt_echo.MAX_LOGPROBS_OF_PIECE", 6)
        sink = await fleet.complete(prompt="Söy bean", **options)
        pieces = [batch[0] for batch in sink.batches if batch[0].choice == 0][:3]
        assert [piece.text for piece in pieces] == ["Sö", "y b", "ean"]
        assert [len(piece.logprobs) for piece in pieces] == [3, 3, 3]
        for choice in (0, 1):
            assert sink.text(choice) == at_once.text(choice)
            assert sink.logprobs(choice) == at_once.logprobs(choice)

    simulate(scenario)


def test_an_echo_of_token_ids_is_their_text_and_needs_no_logprobs() -> None:
    async def scenario(fleet: Fleet) -> None:
        sink = await fleet.complete(prompt=list(b"ab"), echo=True)
        assert sink.text() == "abHello there."
        assert fleet.worker.submits[0].sampling.num_prompt_logprobs == -1
        assert not fleet.router.picked[0].local_prefill

    simulate(scenario)


def test_max_tokens_0_scores_the_prompt_and_produces_nothing() -> None:
    async def scenario(fleet: Fleet) -> None:
        sink = await fleet.complete(prompt="abc", echo=True, logprobs=0, max_tokens=0)
        assert (sink.text(), sink.reason()) == ("abc", "length")
        assert [entry.logprob for entry in sink.logprobs()] == [None, -0.5, -1.0]
        assert sink.usage is not None
        assert (sink.usage.num_prompt_tokens, sink.usage.num_output_tokens) == (3, 0)
        record = fleet.record
        assert (record.num_prompt_tokens, record.num_output_tokens) == (3, 0)
        assert record.num_wasted_tokens == 1

    simulate(scenario)


@pytest.mark.parametrize("prompt", ["a" * 2048, list(b"a" * 2048)])
def test_a_prompt_that_fills_the_context_may_be_scored(prompt: Any) -> None:
    async def scenario(fleet: Fleet) -> None:
        sink = await fleet.complete(prompt=prompt, echo=True, logprobs=0, max_tokens=0)
        assert len(sink.logprobs()) == 2048
        assert fleet.worker.submits[0].sampling.max_tokens == 1
        for fields in ({"max_tokens": 1}, {"max_tokens": 0, "prompt": [*b"a" * 2049]}):
            with pytest.raises(InvalidRequest) as caught:
                await fleet.complete(**{"prompt": prompt, "echo": True, **fields})
            assert caught.value.reason == "context_length_exceeded"

    simulate(scenario)


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"logit_bias": {"300": 1}}, "logit_bias"), ({"stop_token_ids": [1, 300]}, "stop_token_ids")],
)
def test_token_ids_that_the_model_does_not_have_are_refused(
    fields: dict[str, Any], param: str
) -> None:
    async def scenario(fleet: Fleet) -> None:
        with pytest.raises(InvalidRequest) as caught:
            await fleet.chat(**fields)
        assert (caught.value.reason, caught.value.param) == ("invalid_token_id", param)

    simulate(scenario)


def test_a_prompt_that_would_bring_too_many_logprobs_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(submission, "MAX_PROMPT_LOGPROBS", 30)

    async def scenario(fleet: Fleet) -> None:
        await fleet.complete(prompt="12345", echo=True, logprobs=5)
        with pytest.raises(InvalidRequest) as caught:
            await fleet.complete(prompt="12345", echo=True, logprobs=5, n=2)
        assert caught.value.param == "echo"

    simulate(scenario)


def test_a_long_prompt_whose_logprobs_come_has_more_time_for_its_first_token() -> None:
    async def scenario(fleet: Fleet) -> None:
        judge = fleet.worker._judge

        async def slowly(submit: Any, stream: Any) -> None:
            await asyncio.sleep(20)
            await judge(submit, stream)
            await asyncio.sleep(20)

        fleet.worker._judge = slowly  # type: ignore[method-assign]
        fleet.first_token_s = 30.0
        sink = await fleet.complete(prompt="abc", echo=True, logprobs=0)
        assert sink.text() == "abcHello there."

    simulate(scenario)


def test_prompt_logprobs_out_of_order_are_the_workers_fault() -> None:
    async def scenario(fleet: Fleet) -> None:
        judge = fleet.worker._judge

        async def twice(submit: Any, stream: Any) -> None:
            await judge(submit, stream)
            await judge(submit, stream)

        fleet.worker._judge = twice  # type: ignore[method-assign]
        with pytest.raises(InternalFailure):
            await fleet.complete(prompt="abcde", echo=True, logprobs=0)

    simulate(scenario)


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("chat/completions", {"logprobs": True, "top_logprobs": 1, "n": 2}, "top_logprobs"),
        ("completions", {"prompt": "hi", "logprobs": 1, "n": 2}, "logprobs"),
    ],
)
def test_an_answer_with_too_many_logprobs_is_refused_with_the_sum_and_the_cap(
    path: str, fields: dict[str, Any], param: str
) -> None:
    async def scenario(fleet: Fleet) -> None:
        body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], **fields}
        if "prompt" in body:
            del body["messages"]
        for max_tokens in (25, 26):
            request = fleet.incoming(f"/v1/{path}", {**body, "max_tokens": max_tokens})
            if max_tokens == 25:
                await fleet.gateway.pipeline.run(request, RecordingSink())
                continue
            with pytest.raises(InvalidRequest) as caught:
                await fleet.gateway.pipeline.run(request, RecordingSink())
            message = f"{param}: n x max_tokens x (1 + {param}) is 104; at most 100"
            assert (caught.value.message, caught.value.param) == (message, param)

    simulate(scenario, limits=Limits(max_logprobs=100))


def test_an_answer_without_a_maximum_ends_where_its_logprobs_would_be_too_many() -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.chat(logprobs=True, top_logprobs=4, n=2)
        await fleet.chat(n=2)
        first, second = (submit.sampling for submit in fleet.worker.submits)
        assert first.max_tokens == 10
        assert second.max_tokens > 1000

    simulate(scenario, limits=Limits(max_logprobs=100))


class NotingDecoder:
    """Notes how many tokens it decodes at once."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.num_ids: list[int] = []

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        self.num_ids.append(len(ids))
        return self.decoder.decode(list(ids), skip_special_tokens)


async def test_the_text_of_a_long_prompt_is_made_in_pieces() -> None:
    text_model = await Artifacts(FakeTokenizer(), inline).text_model(MODEL_FP)
    decoder = NotingDecoder(text_model.decoder)
    prompt = PromptTokens(array("I", [97] * 3 * PIECE_TOKENS).tobytes())
    request = GenerationRequest("completions", "demo", prompt, echo=True)
    noting = replace(text_model, decoder=decoder)
    echo = PromptEcho(request, prompt.token_ids, noting, text_model.token_bytes)
    assert echo.text == "a" * 3 * PIECE_TOKENS
    assert max(decoder.num_ids) <= PIECE_TOKENS + 16


@pytest.mark.parametrize(("num_tokens", "num_threads"), [(100, 0), (LARGE_PROMPT_TOKENS + 1, 1)])
def test_the_attempts_of_a_long_prompt_are_prepared_beside_the_event_loop(
    num_tokens: int, num_threads: int
) -> None:
    def prepare(fleet: Fleet) -> None:
        fleet.router.models = [model_state(max_model_len=100_000)]

    async def scenario(fleet: Fleet) -> None:
        await fleet.complete()
        before = fleet.num_in_thread
        sink = await fleet.complete(prompt=[97] * num_tokens, echo=True, max_tokens=0)
        assert sink.text() == "a" * num_tokens
        assert fleet.num_in_thread - before == num_threads

    simulate(scenario, prepare=prepare)

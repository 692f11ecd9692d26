"""/v1/embeddings, from the body to the answer."""

import asyncio
import json
from array import array
from base64 import b64decode
from typing import Any

import pytest

from baton.wire.failures import InvalidRequest, LimitExceeded
from baton.wire.pooling import Pooling
from services.gateway.endpoints import ENDPOINTS
from services.gateway.openai.generation import Usage
from services.gateway.openapi.vector_answers import EmbeddingList
from tests.unit.gateway.fakes import Fleet, RecordingSink, artifact, simulate
from tests.unit.gateway.hostile.described import is_described

PATH = "/v1/embeddings"
PLAIN = Pooling("last", 2, normalizes=True)
MATRYOSHKA = Pooling("last", 2, normalizes=True, can_shorten=True)


def embedder(pooling: Pooling = PLAIN) -> Any:
    def prepare(fleet: Fleet) -> None:
        fleet.tokenizer.data = artifact(pooling=pooling)

    return prepare


async def ask(fleet: Fleet, **fields: Any) -> Any:
    sink = RecordingSink()
    await fleet.gateway.pipeline.run(fleet.incoming(PATH, {"model": "demo", **fields}), sink)
    assert sink.identity is not None
    assert sink.request is not None
    format = ENDPOINTS[PATH].answer(sink.identity, sink.request)
    for batch in sink.batches:
        format.collect(batch)
    return json.loads(b"".join(format.whole(sink.usage or Usage(0, 0, 0))))


def vectors(told: Any) -> list[list[float]]:
    assert [each["index"] for each in told["data"]] == list(range(len(told["data"])))
    return [each["embedding"] for each in told["data"]]


def test_the_vector_of_a_text_is_told_with_the_tokens_that_it_has() -> None:
    async def scenario(fleet: Fleet) -> None:
        told = await ask(fleet, input="abc", user="me")
        assert is_described(json.dumps(told).encode(), EmbeddingList)
        assert told == {
            "object": "list",
            "data": [{"object": "embedding", "index": 0, "embedding": [97.0, 3.0]}],
            "model": "demo",
            "usage": {"prompt_tokens": 3, "total_tokens": 3},
        }
        [submit], [picked] = fleet.worker.submits, fleet.router.picked
        assert submit.pools
        assert picked.local_prefill
        assert picked.needs == ["embeddings"]

    simulate(scenario, prepare=embedder())


def test_it_is_billed_for_its_prompt_and_for_no_output() -> None:
    async def scenario(fleet: Fleet) -> None:
        await ask(fleet, input="abc")
        record = fleet.record
        assert (record.endpoint, record.finish_reason) == ("embeddings", "stop")
        assert (record.num_prompt_tokens, record.num_output_tokens) == (3, 0)

    simulate(scenario, prepare=embedder())


@pytest.mark.parametrize(
    "given", [["ab", "b", "c"], [[97, 98], [98], [99]], ["ab", [98], "c"], ["ab"]]
)
def test_a_list_of_texts_or_of_token_lists_is_answered_in_its_order(given: Any) -> None:
    async def scenario(fleet: Fleet) -> None:
        told = await ask(fleet, input=given)
        assert vectors(told) == [[97, 2], [98, 1], [99, 1]][: len(given)]
        assert told["usage"]["prompt_tokens"] == (4 if len(given) == 3 else 2)

    simulate(scenario, prepare=embedder())


def test_a_list_is_one_request_of_its_key_and_is_billed_as_one() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.num_cached = 1
        await ask(fleet, input=["abc", [98, 99], "d" * 40])
        assert {each.request_id for each in fleet.quota.reserved} == {"r1"}
        record = fleet.record
        assert (record.request_id, record.finish_reason) == ("r1", "stop")
        assert (record.num_prompt_tokens, record.num_output_tokens) == (45, 0)
        assert (record.num_cached_tokens, record.num_attempts) == (3, 1)
        assert {each.request_id for each in fleet.worker.submits} == {"r1.0", "r1.1", "r1.2"}
        assert fleet.quota.reserved[-1].num_prompt_tokens >= 45
        assert not fleet.gateway.auditor.running()

    simulate(scenario, prepare=embedder())


def test_a_list_of_which_one_fails_is_billed_for_what_was_read() -> None:
    async def scenario(fleet: Fleet) -> None:
        async def refuse_the_last() -> None:
            while len(fleet.worker.submits) < 32:
                await asyncio.sleep(0.001)
            fleet.worker.refusal = InvalidRequest("no", reason="invalid_token_id")

        fleet.tasks.create_task(refuse_the_last())
        with pytest.raises(InvalidRequest):
            await ask(fleet, input=["ab"] * 64)
        record = fleet.record
        assert record.finish_reason == "invalid_token_id"
        assert record.num_prompt_tokens == 32 * 2

    simulate(scenario, prepare=embedder())


def test_a_list_without_room_is_refused_before_it_is_tokenized() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.quota.reserve_failure = LimitExceeded("too many")
        with pytest.raises(LimitExceeded):
            await ask(fleet, input=["abc", "d"])
        assert not fleet.tokenizer.encoded
        assert not fleet.quota.settled

    simulate(scenario, prepare=embedder())


def test_a_list_of_numbers_is_one_input() -> None:
    async def scenario(fleet: Fleet) -> None:
        assert vectors(await ask(fleet, input=[97, 98, 99])) == [[97, 3]]

    simulate(scenario, prepare=embedder())


def test_vectors_come_as_base64_of_their_floats() -> None:
    async def scenario(fleet: Fleet) -> None:
        told = await ask(fleet, input=["abc", "b"], encoding_format="base64")
        found = [array("f", b64decode(each)).tolist() for each in vectors(told)]
        assert found == [[97, 3], [98, 1]]

    simulate(scenario, prepare=embedder())


def test_a_vector_is_shortened_and_scaled_again() -> None:
    async def scenario(fleet: Fleet) -> None:
        assert vectors(await ask(fleet, input="abc", dimensions=1)) == [[1.0]]
        [whole] = vectors(await ask(fleet, input="abc", dimensions=2))
        assert whole == pytest.approx([97 / 9418**0.5, 3 / 9418**0.5])

    simulate(scenario, prepare=embedder(MATRYOSHKA))


@pytest.mark.parametrize(
    ("pooling", "length", "expected"),
    [
        (PLAIN, 1, "expected 2, because the model"),
        (MATRYOSHKA, 3, "expected 1 to 2"),
        (Pooling("last", 8, can_shorten=True, lengths=(2, 4)), 3, "expected 2, 4"),
    ],
)
def test_a_length_that_the_model_has_not_is_refused(
    pooling: Pooling, length: int, expected: str
) -> None:
    async def scenario(fleet: Fleet) -> None:
        with pytest.raises(InvalidRequest, match=expected) as caught:
            await ask(fleet, input="abc", dimensions=length)
        assert caught.value.param == "dimensions"
        assert not fleet.quota.reserved

    simulate(scenario, prepare=embedder(pooling))


def test_a_model_that_generates_text_is_refused_by_name() -> None:
    async def scenario(fleet: Fleet) -> None:
        with pytest.raises(InvalidRequest, match="'demo' gives text and no vectors") as caught:
            await ask(fleet, input="abc")
        assert (caught.value.reason, caught.value.param) == ("not_an_embedding_model", "model")

    simulate(scenario)


def test_an_embedding_model_is_not_asked_for_text_but_for_tokens() -> None:
    async def scenario(fleet: Fleet) -> None:
        with pytest.raises(
            InvalidRequest, match="gives vectors and no text: ask it at /v1/embeddings"
        ) as caught:
            await fleet.chat()
        assert (caught.value.reason, caught.value.param) == ("not_a_text_model", "model")
        body = {"model": "demo", "prompt": "abc"}
        sink = RecordingSink()
        await fleet.gateway.pipeline.run(fleet.incoming("/tokenize", body), sink)
        assert sink.usage is not None

    simulate(scenario, prepare=embedder())


def test_an_input_may_fill_the_whole_context_and_one_that_is_longer_is_named() -> None:
    async def scenario(fleet: Fleet) -> None:
        assert vectors(await ask(fleet, input="x" * 2048)) == [[120, 2048]]
        with pytest.raises(InvalidRequest) as caught:
            await ask(fleet, input=["abc", "x" * 2049])
        assert caught.value.reason == "context_length_exceeded"
        assert caught.value.param == "input[1]"

    simulate(scenario, prepare=embedder())


def test_many_inputs_run_beside_each_other() -> None:
    async def scenario(fleet: Fleet) -> None:
        started_s = fleet.clock.now()
        told = await ask(fleet, input=["a"] * 64)
        assert len(told["data"]) == 64
        # Two rounds of 32.
        assert fleet.clock.now() - started_s < 4 * fleet.worker.prefill_s

    simulate(scenario, prepare=embedder())


def test_an_input_goes_on_with_another_worker_when_its_own_is_lost() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.unreachable.add("w1")
        assert vectors(await ask(fleet, input="abc")) == [[97, 3]]
        assert fleet.workers["w2"].submits

    simulate(scenario, prepare=embedder())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": [1, -1]}, "input[1]"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "temperature": 1}, "temperature"),
    ],
)
def test_what_is_wrong_with_a_request_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ENDPOINTS[PATH].parse(json.dumps({"model": "demo", **fields}).encode())
    assert caught.value.param == param

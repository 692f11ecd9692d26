"""/v1/rerank and /v1/score, from the body to the answer."""

import json
import tracemalloc
from typing import Any

import msgspec
import pytest

from baton.wire.failures import InvalidRequest
from baton.wire.pooling import Pooling
from services.gateway.endpoints import ENDPOINTS
from services.gateway.openai.generation import Usage
from services.gateway.openapi.vector_answers import Ranking, ScoreList
from tests.unit.gateway.fakes import Fleet, RecordingSink, artifact, simulate
from tests.unit.gateway.hostile.described import is_described

SCORES = Pooling("last", 1, is_score=True)
FOUR = ["aaaa", "a", "aaa", "aa"]


def reranker(**changes: Any) -> Any:
    """Longer texts fit better."""

    def prepare(fleet: Fleet) -> None:
        fleet.tokenizer.data = artifact(pooling=SCORES, **changes)
        fleet.worker.vector_of = lambda submit: [submit.num_prompt_tokens / 64]

    return prepare


async def ask(fleet: Fleet, path: str, **fields: Any) -> Any:
    sink = RecordingSink()
    await fleet.gateway.pipeline.run(fleet.incoming(path, {"model": "demo", **fields}), sink)
    assert sink.identity is not None
    assert sink.request is not None
    format = ENDPOINTS[path].answer(sink.identity, sink.request)
    for batch in sink.batches:
        format.collect(batch)
    body = b"".join(format.whole(sink.usage or Usage(0, 0, 0)))
    assert is_described(body, Ranking if "rerank" in path else ScoreList)
    return json.loads(body)


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_documents_are_ranked_by_their_scores(path: str) -> None:
    async def scenario(fleet: Fleet) -> None:
        told = await ask(fleet, path, query="q", documents=FOUR)
        assert [(each["index"], each["relevance_score"]) for each in told["results"]] == [
            (0, 5 / 64),
            (2, 4 / 64),
            (3, 3 / 64),
            (1, 2 / 64),
        ]
        assert [each["document"]["text"] for each in told["results"]] == ["aaaa", "aaa", "aa", "a"]
        assert told["usage"] == {"prompt_tokens": 14, "total_tokens": 14}
        assert [each.endpoint for each in fleet.quota.settled] == ["rerank"]

    simulate(scenario, prepare=reranker())


def test_only_the_best_are_told_and_without_their_text_if_it_is_not_wanted() -> None:
    async def scenario(fleet: Fleet) -> None:
        documents = [{"text": text} for text in FOUR]
        fields = {"query": "q", "documents": documents, "top_n": 2, "return_documents": False}
        told = await ask(fleet, "/v1/rerank", **fields)
        assert told["results"] == [
            {"index": 0, "relevance_score": 5 / 64},
            {"index": 2, "relevance_score": 4 / 64},
        ]
        assert len((await ask(fleet, "/v1/rerank", query="q", documents=["a"]))["results"]) == 1

    simulate(scenario, prepare=reranker())


def test_pairs_are_scored_one_with_each_or_each_with_its_own() -> None:
    async def scenario(fleet: Fleet) -> None:
        told = await ask(fleet, "/v1/score", text_1="q", text_2=["a", "aa"])
        assert [each["score"] for each in told["data"]] == [2 / 64, 3 / 64]
        told = await ask(fleet, "/v1/score", text_1=["q", "qqq"], text_2=["a", "aa"])
        assert [each["score"] for each in told["data"]] == [2 / 64, 5 / 64]

    simulate(scenario, prepare=reranker())


def test_a_pair_is_one_text_behind_the_other_unless_the_template_has_their_roles() -> None:
    async def scenario(fleet: Fleet) -> None:
        await ask(fleet, "/v1/score", text_1="Q: q ", text_2="D: d")
        assert fleet.tokenizer.encoded[-1].text == "Q: q D: d"

    simulate(scenario, prepare=reranker())

    async def with_template(fleet: Fleet) -> None:
        await ask(fleet, "/v1/score", text_1="q", text_2="d")
        chat = fleet.tokenizer.encoded[-1].chat
        assert json.loads(chat.messages_json) == [
            {"role": "query", "content": "q"},
            {"role": "document", "content": "d"},
        ]
        assert chat.add_generation_prompt

    prepare = reranker(has_pair_template=True, reasoning_syntax="think")
    simulate(with_template, prepare=prepare)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings"])
def test_a_reranker_gives_scores_alone(path: str) -> None:
    async def scenario(fleet: Fleet) -> None:
        body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}
        if "embeddings" in path:
            body = {"model": "demo", "input": "hi"}
        with pytest.raises(InvalidRequest, match="gives scores and no"):
            await fleet.gateway.pipeline.run(fleet.incoming(path, body), RecordingSink())

    simulate(scenario, prepare=reranker())


def test_another_model_is_refused_by_name() -> None:
    async def scenario(fleet: Fleet) -> None:
        with pytest.raises(InvalidRequest, match="gives text and no scores") as caught:
            await ask(fleet, "/v1/rerank", query="q", documents=["d"])
        assert (caught.value.reason, caught.value.param) == ("not_a_reranker", "model")

    simulate(scenario)


@pytest.mark.parametrize("has_pair_template", [False, True])
def test_a_document_that_is_too_long_is_named(has_pair_template: bool) -> None:
    async def scenario(fleet: Fleet) -> None:
        with pytest.raises(InvalidRequest) as caught:
            await ask(fleet, "/v1/rerank", query="q", documents=["a", "x" * 3000])
        assert caught.value.reason == "context_length_exceeded"
        assert caught.value.param == "documents[1]"

    simulate(scenario, prepare=reranker(has_pair_template=has_pair_template))


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/rerank", {"documents": ["a"]}, "query"),
        ("/v1/rerank", {"query": "q"}, "documents"),
        ("/v1/rerank", {"query": "q", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "q", "documents": ["a"], "top_n": -1}, "top_n"),
        ("/v1/rerank", {"query": "q", "documents": ["a"], "max_tokens": 1}, "max_tokens"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}, "text_2"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": "c"}, "text_2"),
    ],
)
def test_what_is_wrong_with_a_request_is_named(
    path: str, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ENDPOINTS[path].parse(json.dumps({"model": "demo", **fields}).encode())
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/rerank", {"query": "q" * 30_000, "documents": ["d"] * 1000}, "query"),
        ("/v1/score", {"text_1": "q" * 30_000, "text_2": ["d"] * 1000}, "text_1"),
    ],
)
def test_a_long_text_is_not_repeated_for_a_thousand_others(
    path: str, fields: dict[str, Any], param: str
) -> None:
    body = msgspec.json.encode({"model": "demo", **fields})
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest) as refused:
            ENDPOINTS[path].parse(body)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused.value.param == param
    assert peak_bytes < 10_000_000, "the prompts take 30 MB"

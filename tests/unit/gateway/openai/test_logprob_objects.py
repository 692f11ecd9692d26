"""The JSON of logprobs, whole and in chunks."""

import json
from typing import Any

import msgspec
import pytest

from services.gateway.openai import logprob_objects
from services.gateway.openai.endpoints import ENDPOINTS, AnswerFormat
from services.gateway.openai.generation import Delta, Identity, Likelihood, TokenLogprob, Usage
from services.gateway.openai.logprob_objects import chat_object, completion_object

IDENTITY = Identity("r1", 0, "m", "f" * 32, 1)
USAGE = Usage(1, 0, 2)
HALF = TokenLogprob(2, b"\xe2\x80", -1.0, (Likelihood(b"\xe2\x80", -1.0), Likelihood(b"b", -1.5)))
FIRST = TokenLogprob(0, b"<s>", None, ())


def answer(path: str, **fields: Any) -> AnswerFormat:
    endpoint = ENDPOINTS[path]
    text = {"messages": [{"role": "user", "content": "x"}], "prompt": "x", "input": "x"}
    name = {"/v1/chat/completions": "messages", "/v1/completions": "prompt"}.get(path, "input")
    body = msgspec.json.encode({"model": "m", name: text[name], **fields})
    return endpoint.answer(IDENTITY, endpoint.parse(body))


def whole_of(format: AnswerFormat, batch: list[Delta]) -> bytes:
    """The body of an answer that does not stream; each delta comes by itself."""
    for delta in batch:
        format.collect([delta])
    return b"".join(format.whole(USAGE))


def events(data: bytes) -> list[Any]:
    lines = [line[6:] for line in data.splitlines() if line.startswith(b"data: {")]
    return [json.loads(line) for line in lines]


def test_half_a_character_is_bytes_beside_a_replacement_in_chat() -> None:
    [entry] = chat_object([HALF])["content"]
    top = entry.pop("top_logprobs")
    assert entry == {"token": "\ufffd", "logprob": -1.0, "bytes": [226, 128]}
    assert top[1] == {"token": "b", "logprob": -1.5, "bytes": [98]}


def test_a_legacy_completion_has_columns_and_names_bytes() -> None:
    assert completion_object([FIRST, HALF]) == {
        "tokens": ["<s>", "bytes:\\xe2\\x80"],
        "token_logprobs": [None, -1.0],
        "top_logprobs": [None, {"bytes:\\xe2\\x80": -1.0, "b": -1.5}],
        "text_offset": [0, 2],
    }


def test_legacy_top_logprobs_have_the_token_itself_and_the_likelier_of_equal_texts() -> None:
    unlikely = TokenLogprob(0, b"z", -9.0, (Likelihood(b"a", -0.1), Likelihood(b"a", -3.0)))
    [top] = completion_object([unlikely])["top_logprobs"]
    assert list(top.items()) == [("a", -0.1), ("z", -9.0)]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_choices_have_logprobs_only_where_they_were_asked_for(path: str) -> None:
    asked = {"logprobs": True} if "chat" in path else {"logprobs": 0}
    for fields, is_asked in ((asked, True), ({}, False)):
        body = json.loads(whole_of(answer(path, **fields), [Delta(0, "x", "stop")]))
        assert (body["choices"][0]["logprobs"] is not None) == is_asked


PATHS = [
    ("/v1/chat/completions", {"logprobs": True}),
    ("/v1/completions", {"logprobs": 1}),
    ("/v1/responses", {"include": ["message.output_text.logprobs"]}),
]


@pytest.mark.parametrize(("path", "fields"), PATHS)
def test_logprobs_of_a_whole_answer_are_encoded_as_they_come(
    monkeypatch: pytest.MonkeyPatch, path: str, fields: dict[str, Any]
) -> None:
    format = answer(path, **fields)
    format.collect([Delta(0, "a", None, (FIRST,)), Delta(0, "b", None, (HALF,))])
    for work in ("_token", "_legacy_text", "_legacy_top"):
        monkeypatch.delattr(logprob_objects, work)
    assert b"<s>" in b"".join(format.whole(USAGE))


def test_chunks_bring_the_logprobs_of_their_text() -> None:
    deltas = [Delta(0, "ab", None, (HALF,)), Delta(0, "", "length", (HALF,))]
    chat = events(answer("/v1/chat/completions", logprobs=True).deltas(deltas))
    told = [chunk["choices"][0] for chunk in chat]
    assert [len(one["logprobs"]["content"]) for one in told[:2]] == [1, 1]
    assert (told[2]["finish_reason"], told[2]["logprobs"]) == ("length", None)
    legacy = events(answer("/v1/completions", logprobs=1).deltas(deltas))
    assert [chunk["choices"][0]["logprobs"]["text_offset"] for chunk in legacy] == [[2], [2]]


def test_a_response_brings_logprobs_in_deltas_and_in_the_finished_part() -> None:
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    streamed = answer("/v1/responses", **fields)
    streamed.opening()
    [delta] = events(streamed.deltas([Delta(0, "ab", "stop", (HALF,))]))
    done = events(b"".join(streamed.closing(USAGE)))
    wanted = delta["logprobs"]
    assert wanted[0]["bytes"] == [226, 128]
    assert done[0]["logprobs"] == done[1]["part"]["logprobs"] == wanted
    response = done[3]["response"]
    assert response["output"][0]["content"][0]["logprobs"] == wanted
    assert response["top_logprobs"] == 1
    whole = whole_of(answer("/v1/responses", **fields), [Delta(0, "ab", "stop", (HALF,))])
    assert json.loads(whole)["output"][0]["content"][0]["logprobs"] == wanted

"""Details of tokens that vLLM's clients ask for, from the worker to the client's bytes."""

import json
from typing import Any

import pytest

from baton.wire.failures import InvalidRequest
from services.gateway.openai.endpoints import ENDPOINTS
from services.gateway.openai.generation import Usage
from tests.unit.gateway.fakes import EOS, Fleet, RecordingSink, simulate

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def body_of(path: str, sink: RecordingSink) -> Any:
    """The answer's JSON."""
    assert sink.identity is not None
    assert sink.request is not None
    format = ENDPOINTS[path].answer(sink.identity, sink.request)
    for batch in sink.batches:
        format.collect(batch)
    return json.loads(b"".join(format.whole(sink.usage or Usage(0, 0, 0))))


def chunks_of(path: str, sink: RecordingSink) -> list[Any]:
    """The events of the answer's stream, but for the end."""
    assert sink.identity is not None
    assert sink.request is not None
    format = ENDPOINTS[path].answer(sink.identity, sink.request)
    data = format.opening() + b"".join(format.deltas(batch) for batch in sink.batches)
    return [json.loads(line[6:]) for line in data.splitlines() if line]


def test_ids_of_tokens_come_with_the_text() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = ["Hé!"]
        sink = await fleet.complete(prompt="ab", return_token_ids=True, n=2)
        for choice in body_of(COMPLETIONS, sink)["choices"]:
            assert choice["prompt_token_ids"] == list(b"ab")
            assert choice["token_ids"] == [*"Hé!".encode(), EOS]
        sink = await fleet.chat(return_token_ids=True)
        body = body_of(CHAT, sink)
        assert body["prompt_token_ids"][:2] == list(b"[{")
        assert body["choices"][0]["token_ids"] == [*"Hé!".encode(), EOS]
        assert "prompt_logprobs" not in body

    simulate(scenario)


def test_ids_in_a_stream_are_those_of_the_chunk() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = ["Hé"]
        asked = {"return_token_ids": True, "stream": True}
        chunks = chunks_of(COMPLETIONS, await fleet.complete(prompt="ab", **asked))
        entries = [chunk["choices"][0] for chunk in chunks]
        assert entries[0]["prompt_token_ids"] == list(b"ab")
        told = [(each["text"], each.get("token_ids")) for each in entries[1:]]
        assert told == [("H", [72]), ("é", [0xC3, 0xA9]), ("", [EOS])]
        chunks = chunks_of(CHAT, await fleet.chat(**asked))
        assert [chunk.get("prompt_token_ids") is not None for chunk in chunks[:3]] == [0, 1, 0]
        ids = [id for each in chunks for id in each["choices"][0].get("token_ids", [])]
        assert ids == [*"Hé".encode(), EOS]

    simulate(scenario)


def test_tokens_behind_a_stop_string_have_no_ids() -> None:
    async def scenario(fleet: Fleet) -> None:
        sink = await fleet.complete(return_token_ids=True, stop=["lo"])
        [choice] = body_of(COMPLETIONS, sink)["choices"]
        assert (choice["text"], bytes(choice["token_ids"])) == ("Hel", b"Hello")

    simulate(scenario)


def test_logprobs_of_the_prompt_are_told_by_token_id() -> None:
    async def scenario(fleet: Fleet) -> None:
        sink = await fleet.complete(prompt="abc", prompt_logprobs=2, max_tokens=5)
        [choice] = body_of(COMPLETIONS, sink)["choices"]
        assert choice["text"] == "Hello"
        assert choice["logprobs"] is None
        assert choice["prompt_logprobs"] == [
            None,
            {
                "98": {"logprob": -0.5, "rank": 1, "decoded_token": "b"},
                "99": {"logprob": -1.5, "rank": 2, "decoded_token": "c"},
            },
            {
                "99": {"logprob": -1.0, "rank": 1, "decoded_token": "c"},
                "100": {"logprob": -2.0, "rank": 2, "decoded_token": "d"},
            },
        ]
        assert fleet.router.picked[0].local_prefill

    simulate(scenario)


def test_a_conversation_has_its_logprobs_once_and_beside_those_of_the_answer() -> None:
    async def scenario(fleet: Fleet) -> None:
        sink = await fleet.chat(prompt_logprobs=0, logprobs=True, n=2)
        body = body_of(CHAT, sink)
        assert sink.usage is not None
        assert len(body["prompt_logprobs"]) == sink.usage.num_prompt_tokens
        assert body["prompt_logprobs"][1] == {
            "123": {"logprob": -0.5, "rank": 1, "decoded_token": "{"}
        }
        assert [len(each["logprobs"]["content"]) for each in body["choices"]] == [12, 12]

    simulate(scenario)


def test_an_echo_keeps_its_own_number_of_likeliest_tokens() -> None:
    async def scenario(fleet: Fleet) -> None:
        asked = {"echo": True, "logprobs": 1, "prompt_logprobs": 3, "max_tokens": 0}
        [choice] = body_of(COMPLETIONS, await fleet.complete(prompt="abc", **asked))["choices"]
        assert choice["text"] == "abc"
        assert [len(each or {}) for each in choice["logprobs"]["top_logprobs"]] == [0, 1, 1]
        assert [len(each or {}) for each in choice["prompt_logprobs"]] == [0, 3, 3]

    simulate(scenario)


def test_a_long_prompt_has_its_logprobs_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.gateway.text.token_details.MAX_LOGPROBS_OF_PIECE", 4)

    async def scenario(fleet: Fleet) -> None:
        sink = await fleet.complete(prompt="abcdefg", prompt_logprobs=1, return_token_ids=True)
        [choice] = body_of(COMPLETIONS, sink)["choices"]
        assert len(choice["prompt_logprobs"]) == 7
        assert choice["prompt_token_ids"] == list(b"abcdefg")
        assert len([each for each in sink.batches if each[0].details.prompt_logprobs]) == 4

    simulate(scenario)


def test_logprobs_may_name_tokens_by_id() -> None:
    async def scenario(fleet: Fleet) -> None:
        asked = {"echo": True, "logprobs": 1, "return_tokens_as_token_ids": True, "max_tokens": 1}
        [choice] = body_of(COMPLETIONS, await fleet.complete(prompt="ab", **asked))["choices"]
        assert choice["logprobs"]["tokens"] == ["token_id:97", "token_id:98", "token_id:72"]
        assert choice["logprobs"]["text_offset"] == [0, 1, 2]
        assert choice["logprobs"]["top_logprobs"][1] == {"token_id:98": -0.5}

    simulate(scenario)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_each_chunk_may_have_the_usage_so_far(path: str) -> None:
    async def scenario(fleet: Fleet) -> None:
        options = {"include_usage": True, "continuous_usage_stats": True}
        run = fleet.chat if path == CHAT else fleet.complete
        sink = await run(stream=True, stream_options=options)
        usages = [chunk["usage"] for chunk in chunks_of(path, sink)]
        assert sink.usage is not None
        assert {each["prompt_tokens"] for each in usages} == {sink.usage.num_prompt_tokens}
        counts = [each["completion_tokens"] for each in usages]
        assert counts == sorted(counts)
        assert counts[-1] == sink.usage.num_output_tokens
        assert not any("token_ids" in c["choices"][0] for c in chunks_of(path, sink))
        plain = await run(stream=True, stream_options={"include_usage": True})
        assert {str(each["usage"]) for each in chunks_of(path, plain)} == {"None"}

    simulate(scenario)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "use_beam_search": True}, "prompt_logprobs"),
        (
            {
                "stream": True,
                "prompt": ["a", "b"],
                "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            },
            "stream_options.continuous_usage_stats",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(fields: dict[str, Any], param: str) -> None:
    async def scenario(fleet: Fleet) -> None:
        with pytest.raises(InvalidRequest) as caught:
            await fleet.complete(**fields)
        assert caught.value.param == param

    simulate(scenario)


def test_the_ids_of_a_long_prompt_are_encoded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.gateway.text.token_details.PIECE_TOKENS", 4)

    async def scenario(fleet: Fleet) -> None:
        asked = {"prompt": "abcdefghi", "return_token_ids": True}
        sink = await fleet.complete(**asked, prompt_logprobs=1, n=2)
        deltas = [delta for batch in sink.batches for delta in batch if delta.details]
        assert max(len(each.details.token_ids) for each in deltas if each.details.is_prompt) == 4
        for choice in body_of(COMPLETIONS, sink)["choices"]:
            assert choice["prompt_token_ids"] == list(b"abcdefghi")
            assert len(choice["prompt_logprobs"]) == 9
        # In a stream they are one list.
        chunks = chunks_of(COMPLETIONS, await fleet.complete(**asked, stream=True))
        assert chunks[0]["choices"][0]["prompt_token_ids"] == list(b"abcdefghi")

    simulate(scenario)

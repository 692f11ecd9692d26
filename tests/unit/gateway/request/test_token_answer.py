"""/tokenize and /detokenize, through the pipeline."""

import json
from typing import Any

import pytest
from tokenizers import Tokenizer

from baton.wire.failures import InvalidRequest, LimitExceeded
from services.gateway.openai import limits
from services.gateway.openai.endpoints import ENDPOINTS
from services.gateway.openai.generation import Usage
from services.gateway.text import detokenize
from services.gateway.text.detokenize import text_pieces
from tests.unit.gateway.fakes import EOS, Fleet, RecordingSink, simulate, tokenizer_json

HI = [{"role": "user", "content": "hi"}]


async def ask(fleet: Fleet, path: str, **fields: Any) -> Any:
    sink = RecordingSink()
    await fleet.gateway.pipeline.run(fleet.incoming(path, {"model": "demo", **fields}), sink)
    assert sink.identity is not None
    assert sink.request is not None
    format = ENDPOINTS[path].answer(sink.identity, sink.request)
    for batch in sink.batches:
        format.collect(batch)
    return json.loads(b"".join(format.whole(sink.usage or Usage(0, 0, 0))))


def test_a_prompt_is_told_as_token_ids() -> None:
    async def scenario(fleet: Fleet) -> None:
        told = await ask(fleet, "/tokenize", prompt="Hé ", return_token_strs=True)
        assert told["tokens"] == list("Hé ".encode())
        assert (told["count"], told["max_model_len"]) == (4, 2048)
        assert "".join(told["token_strs"]).startswith("H")
        assert len(told["token_strs"]) == 4
        plain = await ask(fleet, "/tokenize", prompt="Hé ", add_special_tokens=False)
        assert plain["token_strs"] is None
        assert [each.text for each in fleet.tokenizer.encoded] == ["Hé ", "Hé "]
        assert fleet.tokenizer.encoded[1].HasField("add_special_tokens")

    simulate(scenario)


def test_a_conversation_is_told_as_its_model_reads_it() -> None:
    async def scenario(fleet: Fleet) -> None:
        told = await ask(
            fleet,
            "/tokenize",
            messages=HI,
            add_generation_prompt=False,
            chat_template_kwargs={"a": 1},
        )
        [encoded] = fleet.tokenizer.encoded
        assert bytes(told["tokens"]) == encoded.chat.messages_json
        assert not encoded.chat.add_generation_prompt
        assert encoded.chat.template_kwargs_json == b'{"a":1}'

    simulate(scenario)


def test_a_prompt_may_be_longer_than_the_context() -> None:
    async def scenario(fleet: Fleet) -> None:
        told = await ask(fleet, "/tokenize", prompt="x" * 10_000)
        assert told["count"] == 10_000
        assert fleet.tokenizer.encoded[0].max_prompt_tokens == 0

    simulate(scenario)


def test_the_tokens_of_a_long_prompt_are_encoded_as_they_come() -> None:
    async def scenario(fleet: Fleet) -> None:
        sink = RecordingSink()
        body = {"model": "demo", "prompt": "x" * 10_000, "return_token_strs": True}
        await fleet.gateway.pipeline.run(fleet.incoming("/tokenize", body), sink)
        assert sink.identity is not None
        assert sink.request is not None
        format = ENDPOINTS["/tokenize"].answer(sink.identity, sink.request)
        for batch in sink.batches:
            format.collect(batch)
        pieces = format.whole(Usage(0, 0, 0))
        assert len(pieces) > 6
        told = json.loads(b"".join(pieces))
        assert told["tokens"] == list(b"x" * 10_000)
        assert told["token_strs"] == ["x"] * 10_000

    simulate(scenario)


def test_it_counts_as_a_request_and_uses_no_tokens() -> None:
    async def scenario(fleet: Fleet) -> None:
        await ask(fleet, "/tokenize", prompt="abc")
        await ask(fleet, "/detokenize", tokens=[97])
        for reserved in fleet.quota.reserved:
            assert (reserved.num_prompt_tokens, reserved.num_output_tokens) == (0, 0)
        records = [(each.endpoint, each.finish_reason) for each in fleet.quota.settled]
        assert records == [("tokenize", "stop"), ("detokenize", "stop")]
        assert {each.num_prompt_tokens for each in fleet.quota.settled} == {0}
        assert not fleet.router.picked
        fleet.quota.reserve_failure = LimitExceeded("too many")
        with pytest.raises(LimitExceeded):
            await ask(fleet, "/tokenize", prompt="abc")

    simulate(scenario)


def test_tokens_are_told_as_text_with_special_ones() -> None:
    async def scenario(fleet: Fleet) -> None:
        told = await ask(fleet, "/detokenize", tokens=[*"Hé".encode(), EOS])
        assert told == {"prompt": "Hé<eos>"}
        assert await ask(fleet, "/detokenize", tokens=[]) == {"prompt": ""}
        assert not fleet.tokenizer.encoded

    simulate(scenario)


def test_the_text_of_many_tokens_is_encoded_as_it_comes(monkeypatch: Any) -> None:
    monkeypatch.setattr(detokenize, "PIECE_TOKENS", 4)

    async def scenario(fleet: Fleet) -> None:
        sink = RecordingSink()
        body = {"model": "demo", "tokens": list(b'say "hi" 10 times')}
        await fleet.gateway.pipeline.run(fleet.incoming("/detokenize", body), sink)
        assert sink.identity is not None
        assert sink.request is not None
        format = ENDPOINTS["/detokenize"].answer(sink.identity, sink.request)
        for batch in sink.batches:
            format.collect(batch)
        pieces = list(format.whole(Usage(0, 0, 0)))
        assert max(map(len, pieces)) < 12
        assert json.loads(b"".join(pieces)) == {"prompt": 'say "hi" 10 times'}

    simulate(scenario)


def test_the_text_of_one_request_is_limited(monkeypatch: Any) -> None:
    monkeypatch.setattr(detokenize, "PIECE_TOKENS", 4)
    monkeypatch.setattr(limits, "MAX_TOLD_CHARS", 12)

    async def scenario(fleet: Fleet) -> None:
        assert await ask(fleet, "/detokenize", tokens=list(b"twelve chars")) == {
            "prompt": "twelve chars"
        }
        with pytest.raises(InvalidRequest, match="over 12 characters") as caught:
            await ask(fleet, "/detokenize", tokens=list(b"thirteen char"))
        assert caught.value.param == "tokens"

    simulate(scenario)


@pytest.mark.parametrize("piece", [1, 2, 3, 5])
def test_text_in_pieces_is_the_text_as_a_whole(monkeypatch: Any, piece: int) -> None:
    monkeypatch.setattr(detokenize, "PIECE_TOKENS", piece)
    decoder = Tokenizer.from_str(tokenizer_json().decode())
    ids = list("a é 日本 🎉 b".encode())
    assert "".join(text_pieces(ids, decoder)) == "a é 日本 🎉 b"
    assert len(list(text_pieces(ids, decoder))) > 1


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": HI}, "prompt"),
        ("/tokenize", {"prompt": "a", "max_tokens": 1}, "max_tokens"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [1, -1]}, "tokens[1]"),
        ("/detokenize", {"tokens": [1, 257]}, "tokens"),
    ],
)
def test_bad_fields_are_named(path: str, fields: dict[str, Any], param: str) -> None:
    async def scenario(fleet: Fleet) -> None:
        with pytest.raises(InvalidRequest) as caught:
            await ask(fleet, path, **fields)
        assert caught.value.param == param

    simulate(scenario)

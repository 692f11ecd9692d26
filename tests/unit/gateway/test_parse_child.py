"""Bodies parsed in another process: requests and refusals come back as they were."""

import msgspec
import pytest

from baton.wire.failures import InvalidRequest
from services.gateway.clients import parse_child
from services.gateway.clients.parse_child import Body, Parsed
from services.gateway.openai import chat, completions, responses

TURN = {"role": "user", "content": "hi"}
BODIES = [
    ("chat.completions", chat.parse, {"messages": [TURN], "logprobs": True, "top_logprobs": 2}),
    ("chat.completions", chat.parse, {"messages": [TURN], "logit_bias": {"7": -1.5}, "n": 3}),
    ("chat.completions", chat.parse, {"messages": [TURN], "use_beam_search": True, "n": 4}),
    ("chat.completions", chat.parse, {"messages": [TURN], "guided_choice": ["yes", "no"]}),
    ("completions", completions.parse, {"prompt": "once", "stop": ["a", "b"], "seed": -1}),
    ("completions", completions.parse, {"prompt": [1, 2, 3], "early_stopping": None}),
    ("responses", responses.parse, {"input": "hi", "instructions": "be", "metadata": {"a": "b"}}),
]


def answer(endpoint, body: bytes) -> Parsed:
    handler, _ = parse_child.build_handler(b"")
    told = handler(msgspec.msgpack.encode(Body(endpoint, body)))
    return msgspec.msgpack.decode(told, type=Parsed)


@pytest.mark.parametrize(("endpoint", "parse", "fields"), BODIES)
def test_a_request_comes_back_as_it_was_parsed(endpoint, parse, fields) -> None:
    body = msgspec.json.encode({"model": "m", **fields})
    assert answer(endpoint, body) == Parsed(request=parse(body))


def test_a_refusal_comes_back_with_its_reason_and_its_field() -> None:
    body = b'{"model": "m", "model": "n"}'
    with pytest.raises(InvalidRequest) as caught:
        chat.parse(body)
    refusal = answer("chat.completions", body).refusal
    assert refusal is not None
    expected = (caught.value.message, caught.value.reason, caught.value.param)
    assert (refusal.message, refusal.reason, refusal.param) == expected


def test_a_body_that_needs_too_much_memory_is_refused(monkeypatch) -> None:
    def parse(body: bytes) -> None:
        raise MemoryError

    monkeypatch.setitem(parse_child._PARSERS, "completions", parse)
    refusal = answer("completions", b"{}").refusal
    assert refusal is not None
    assert refusal.reason == "body_too_large"

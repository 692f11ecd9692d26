"""Beam search in requests: what goes with it, and what does not, by name."""

from typing import Any

import msgspec
import pytest

from baton.wire.failures import InvalidRequest
from services.gateway.openai import chat, completions, responses
from services.gateway.openai.generation import BeamSearch

HI = [{"role": "user", "content": "hi"}]


def chat_of(**fields: Any) -> Any:
    return chat.parse(msgspec.json.encode({"model": "m", "messages": HI, **fields}))


def completion_of(**fields: Any) -> Any:
    return completions.parse(msgspec.json.encode({"model": "m", "prompt": "x", **fields}))


@pytest.mark.parametrize("parse", [chat_of, completion_of])
def test_a_beam_search_has_n_beams_and_its_own_options(parse: Any) -> None:
    assert parse(n=3).search is None
    assert parse(use_beam_search=False).search is None
    plain = parse(use_beam_search=True)
    assert (plain.search, plain.num_choices) == (BeamSearch(1.0, False), 1)
    never = parse(use_beam_search=True, n=3, length_penalty=0, early_stopping="never")
    assert (never.search, never.num_choices) == (BeamSearch(0.0, "never"), 3)
    full = parse(use_beam_search=True, early_stopping=True, length_penalty=-2)
    assert full.search == BeamSearch(-2.0, True)


@pytest.mark.parametrize("parse", [chat_of, completion_of])
def test_values_that_ask_for_nothing_go_with_it(parse: Any) -> None:
    request = parse(
        use_beam_search=True, temperature=0, top_p=1, top_k=-1, min_p=0, presence_penalty=0,
        repetition_penalty=1, logit_bias={}, seed=7, stop=["x"], min_tokens=1,
        response_format={"type": "text"},
    )  # fmt: skip
    assert request.search is not None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 0.5}, "temperature"),
        ({"top_p": 0.9}, "top_p"),
        ({"top_k": 5}, "top_k"),
        ({"min_p": 0.1}, "min_p"),
        ({"presence_penalty": 1}, "presence_penalty"),
        ({"frequency_penalty": 1}, "frequency_penalty"),
        ({"repetition_penalty": 2}, "repetition_penalty"),
        ({"logit_bias": {"1": 1}}, "logit_bias"),
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"guided_regex": "a"}, "guided_regex"),
    ],
)
def test_what_chooses_tokens_in_another_way_is_refused_beside_it(
    fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat_of(use_beam_search=True, **fields)
    assert (caught.value.param, caught.value.reason) == (param, "unsupported_parameter")


def test_legacy_logprobs_of_0_are_refused_too() -> None:
    with pytest.raises(InvalidRequest) as caught:
        completion_of(use_beam_search=True, logprobs=0)
    assert caught.value.param == "logprobs"


@pytest.mark.parametrize("name", ["length_penalty", "early_stopping"])
def test_options_of_a_search_without_one_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat_of(**{name: True if name == "early_stopping" else 1.5})
    assert caught.value.param == name


def test_responses_have_no_beam_search() -> None:
    body = {"model": "m", "input": "x", "use_beam_search": True}
    with pytest.raises(InvalidRequest) as caught:
        responses.parse(msgspec.json.encode(body))
    assert caught.value.param == "use_beam_search"

import math
from typing import Any

import pytest

from baton.engine.protocol.messages import Grammar
from baton.wire.failures import InvalidRequest
from baton.wire.v1 import sampling_pb2
from baton.worker.sampling import to_params


def make(**fields: Any) -> sampling_pb2.Sampling:
    defaults: dict[str, Any] = {"max_tokens": 5, "num_logprobs": -1, "num_prompt_logprobs": -1}
    return sampling_pb2.Sampling(**defaults | fields)


def test_options_reach_the_engine_unchanged() -> None:
    params = to_params(
        make(temperature=0.5, top_p=0.25, top_k=7, seed=2**63, ignore_eos=True, stop_token_ids=[3])
    )

    assert (params.max_tokens, params.temperature, params.top_p) == (5, 0.5, 0.25)
    assert (params.top_k, params.seed, params.ignore_eos) == (7, 2**63, True)
    assert params.stop_token_ids == (3,)


def test_penalties_biases_and_logprobs_reach_the_engine() -> None:
    params = to_params(
        make(
            min_p=0.25, presence_penalty=0.5, frequency_penalty=-1, repetition_penalty=1.5,
            min_tokens=3, logit_bias={7: -100}, num_logprobs=0, num_prompt_logprobs=20,
        )
    )  # fmt: skip

    assert (params.min_p, params.presence_penalty, params.frequency_penalty) == (0.25, 0.5, -1)
    assert (params.repetition_penalty, params.min_tokens) == (1.5, 3)
    assert params.logit_bias == ((7, -100.0),)
    assert (params.num_logprobs, params.num_prompt_logprobs) == (0, 20)


def test_what_is_unset_is_off() -> None:
    params = to_params(make())
    assert (params.top_p, params.repetition_penalty) == (1.0, 1.0)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": math.nan},
        {"temperature": -1},
        {"temperature": math.inf},
        {"top_p": 1.5},
        {"min_p": -0.1},
        {"presence_penalty": math.nan},
        {"frequency_penalty": math.inf},
        {"repetition_penalty": -1},
        {"logit_bias": {1: math.nan}},
        {"logit_bias": dict.fromkeys(range(1025), 1.0)},
        {"num_logprobs": 21},
        {"num_logprobs": -2},
        {"num_prompt_logprobs": 21},
        {"length_penalty": math.nan},
        {"length_penalty": 11},
        {"early_stopping": 9},
    ],
)
def test_impossible_values_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        to_params(make(**fields))


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({}, None),
        ({"json_object": True}, Grammar("json_object")),
        ({"json_schema": "{}"}, Grammar("json_schema", "{}")),
        ({"regex": "a+"}, Grammar("regex", "a+")),
        ({"ebnf_grammar": "start: A"}, Grammar("ebnf", "start: A")),
        ({"choices": {"values": ["a", "\u00fc"]}}, Grammar("choice", '["a", "\\u00fc"]')),
    ],
)
def test_what_the_output_must_look_like(fields: dict[str, Any], grammar: Grammar | None) -> None:
    assert to_params(make(**fields)).grammar == grammar


@pytest.mark.parametrize(
    "fields", [{"json_object": False}, {"choices": {}}, {"regex": "a" * 300_000}]
)
def test_a_format_that_asks_for_nothing_or_too_much_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as raised:
        to_params(make(**fields))
    assert raised.value.param == "response_format"


def test_a_beam_search_has_a_beam_for_each_choice() -> None:
    plain = to_params(make(use_beam_search=True))
    assert (plain.beam_width, plain.length_penalty, plain.early_stopping) == (1, 1.0, "heuristic")

    never = sampling_pb2.EARLY_STOPPING_NEVER
    params = to_params(
        make(use_beam_search=True, num_choices=4, length_penalty=0, early_stopping=never)
    )
    assert (params.beam_width, params.length_penalty, params.early_stopping) == (4, 0.0, "never")
    assert to_params(make(num_choices=4)).beam_width == 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 1.0}, "temperature"),
        ({"top_p": 0.5}, "top_p"),
        ({"top_k": 3}, "top_k"),
        ({"presence_penalty": 1.0}, "presence_penalty"),
        ({"logit_bias": {1: 1.0}}, "logit_bias"),
        ({"num_logprobs": 0}, "logprobs"),
    ],
)
def test_what_does_not_go_with_beams_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        to_params(make(use_beam_search=True, **fields))

    assert raised.value.param == param

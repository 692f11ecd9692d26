import math
from typing import Any

import pytest

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
    assert (params.top_p, params.repetition_penalty, params.needs_history) == (1.0, 1.0, False)


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
    ],
)
def test_impossible_values_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        to_params(make(**fields))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"use_beam_search": True}, "use_beam_search"),
        ({"json_object": True}, "response_format"),
    ],
)
def test_what_the_engine_cannot_do_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        to_params(make(**fields))

    assert raised.value.reason == "unsupported_parameter"
    assert raised.value.param == param

"""Sampling options from the wire to the engine; what it cannot do is refused by name."""

import math

from baton.engine.messages import SamplingParams
from baton.wire.failures import InvalidRequest
from baton.wire.v1 import sampling_pb2

MAX_CHOICES = 128


def to_params(sampling: sampling_pb2.Sampling) -> SamplingParams:
    """The engine's parameters. Raises InvalidRequest naming the field."""
    _refuse_unsupported(sampling)
    if sampling.max_tokens == 0:
        raise InvalidRequest("max_tokens must be at least 1", param="max_tokens")
    if not 0 <= sampling.temperature < math.inf:
        raise InvalidRequest("temperature must be a number from 0 on", param="temperature")
    if not 0 <= sampling.top_p <= 1:
        raise InvalidRequest("top_p must be between 0 and 1", param="top_p")
    if sampling.num_choices > MAX_CHOICES:
        raise InvalidRequest(f"n is at most {MAX_CHOICES}", param="n")
    return SamplingParams(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p or 1.0,
        top_k=sampling.top_k,
        seed=sampling.seed,
        ignore_eos=sampling.ignore_eos,
        stop_token_ids=tuple(sampling.stop_token_ids),
    )


def _refuse_unsupported(sampling: sampling_pb2.Sampling) -> None:
    asked = {
        "min_p": sampling.min_p != 0,
        "presence_penalty": sampling.presence_penalty != 0,
        "frequency_penalty": sampling.frequency_penalty != 0,
        "repetition_penalty": sampling.repetition_penalty not in (0, 1),
        "min_tokens": sampling.min_tokens > 0,
        "logprobs": sampling.num_logprobs > 0,
        "prompt_logprobs": sampling.num_prompt_logprobs > 0,
        "logit_bias": len(sampling.logit_bias) > 0,
        "use_beam_search": sampling.use_beam_search,
        "response_format": sampling.WhichOneof("structured_output") is not None,
    }
    for param, is_asked in asked.items():
        if is_asked:
            raise InvalidRequest(
                f"{param} is not supported by this worker",
                reason="unsupported_parameter",
                param=param,
            )

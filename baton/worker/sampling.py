"""Sampling options from the wire to the engine; what it cannot do is refused by name."""

import json
import math

import msgspec

from baton.engine.protocol.messages import EarlyStopping, Grammar, SamplingParams
from baton.wire.failures import InvalidRequest
from baton.wire.limits import (
    MAX_BIASES,
    MAX_CHOICES,
    MAX_LENGTH_PENALTY,
    MAX_LOGPROBS,
    MAX_WIRE_GRAMMAR_CHARS,
)
from baton.wire.v1 import sampling_pb2

_NO_FORMAT = "response_format asks for nothing"
_EARLY_STOPPING: dict[int, EarlyStopping] = {
    sampling_pb2.EARLY_STOPPING_UNSPECIFIED: "heuristic",
    sampling_pb2.EARLY_STOPPING_FULL: "full",
    sampling_pb2.EARLY_STOPPING_NEVER: "never",
}


def to_params(sampling: sampling_pb2.Sampling) -> SamplingParams:
    """The engine's parameters. Raises InvalidRequest naming the field."""
    _check_ranges(sampling)
    if sampling.use_beam_search:
        _refuse_beside_beams(sampling)
    return SamplingParams(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p or 1.0,
        top_k=sampling.top_k,
        seed=sampling.seed,
        ignore_eos=sampling.ignore_eos,
        stop_token_ids=tuple(sampling.stop_token_ids),
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty or 1.0,
        min_tokens=sampling.min_tokens,
        logit_bias=tuple(sampling.logit_bias.items()),
        num_logprobs=_num_tops(sampling.num_logprobs),
        num_prompt_logprobs=_num_tops(sampling.num_prompt_logprobs),
        beam_width=max(1, sampling.num_choices) if sampling.use_beam_search else 0,
        length_penalty=sampling.length_penalty if sampling.HasField("length_penalty") else 1.0,
        early_stopping=_EARLY_STOPPING[sampling.early_stopping],
        grammar=_grammar_of(sampling),
    )


def _num_tops(on_wire: int) -> int | None:
    """How many likeliest tokens are to be reported; on the wire -1 = no logprobs."""
    return None if on_wire < 0 else on_wire


def _grammar_of(sampling: sampling_pb2.Sampling) -> Grammar | None:
    """The form that the output must have. Raises InvalidRequest."""
    match sampling.WhichOneof("structured_output"):
        case "json_schema":
            grammar = Grammar("json_schema", sampling.json_schema)
        case "regex":
            grammar = Grammar("regex", sampling.regex)
        case "ebnf_grammar":
            grammar = Grammar("ebnf", sampling.ebnf_grammar)
        case "choices" if sampling.choices.values:
            grammar = Grammar("choice", json.dumps(list(sampling.choices.values)))
        case "json_object" if sampling.json_object:
            grammar = Grammar("json_object")
        case None:
            return None
        case _:
            raise InvalidRequest(_NO_FORMAT, param="response_format")
    grammar = msgspec.structs.replace(grammar, frame=sampling.grammar_frame)
    if len(grammar.text) + len(grammar.frame) > MAX_WIRE_GRAMMAR_CHARS:
        message = f"response_format has more than {MAX_WIRE_GRAMMAR_CHARS} characters"
        raise InvalidRequest(message, param="response_format")
    return grammar


def _check_ranges(sampling: sampling_pb2.Sampling) -> None:
    """Refuse what no sampler could use; the gateway's own limits are narrower."""
    biases = sampling.logit_bias.values()
    is_fine = {
        "max_tokens": sampling.max_tokens > 0,
        "temperature": 0 <= sampling.temperature < math.inf,
        "top_p": 0 <= sampling.top_p <= 1,
        "min_p": 0 <= sampling.min_p <= 1,
        "presence_penalty": math.isfinite(sampling.presence_penalty),
        "frequency_penalty": math.isfinite(sampling.frequency_penalty),
        "repetition_penalty": 0 <= sampling.repetition_penalty < math.inf,
        "logit_bias": len(biases) <= MAX_BIASES and all(map(math.isfinite, biases)),
        "n": sampling.num_choices <= MAX_CHOICES,
        "length_penalty": abs(sampling.length_penalty) <= MAX_LENGTH_PENALTY,
        "early_stopping": sampling.early_stopping in _EARLY_STOPPING,
        "logprobs": -1 <= sampling.num_logprobs <= MAX_LOGPROBS,
        "prompt_logprobs": -1 <= sampling.num_prompt_logprobs <= MAX_LOGPROBS,
    }
    for param, fine in is_fine.items():
        if not fine:
            raise InvalidRequest(f"{param} has a value that means nothing", param=param)


def _refuse_beside_beams(sampling: sampling_pb2.Sampling) -> None:
    """A beam search takes the likeliest tokens as they are; it samples and changes nothing."""
    asked = {
        "temperature": sampling.temperature != 0,
        "top_p": sampling.top_p not in (0, 1),
        "top_k": sampling.top_k > 0,
        "min_p": sampling.min_p != 0,
        "presence_penalty": sampling.presence_penalty != 0,
        "frequency_penalty": sampling.frequency_penalty != 0,
        "repetition_penalty": sampling.repetition_penalty not in (0, 1),
        "logit_bias": len(sampling.logit_bias) > 0,
        "logprobs": sampling.num_logprobs >= 0,
        "prompt_logprobs": sampling.num_prompt_logprobs >= 0,
        "response_format": sampling.WhichOneof("structured_output") is not None,
    }
    for param, is_asked in asked.items():
        if is_asked:
            raise InvalidRequest(
                f"{param} does not go with use_beam_search",
                reason="unsupported_parameter",
                param=param,
            )

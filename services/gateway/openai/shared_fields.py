"""The fields that endpoints have in common: sampling, harmless fields, the usage object.

HARMLESS_VALUES is the explicit list of fields of absent features with the values that ask for
nothing; SharedFields' lower half lists the metadata that is accepted and has no effect.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from baton.wire.failures import InvalidRequest
from services.gateway.openai import limits, structured
from services.gateway.openai.decoding import unsupported_field
from services.gateway.openai.generation import BeamSearch, Extras, Structure, TokenRules, Usage

HARMLESS_VALUES: dict[str, tuple[Any, ...]] = {
    "service_tier": ("auto", "default"),
    "moderation": (),
    "prompt_cache_options": ({}, {"mode": "implicit"}),
    # A *maximum* time to keep a prefix; ours are kept for less.
    "prompt_cache_retention": ("in_memory", "24h"),
    # vLLM's defaults, which its clients write out.
    "add_generation_prompt": (True,),
    "add_special_tokens": (True, False),
    "bad_words": ([],),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "include_reasoning": (True, False),
    "mm_processor_kwargs": ({},),
    "priority": (0,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "spaces_between_special_tokens": (True,),
}
# Of fields that only a beam search has: values that change nothing without one.
_DEFAULTS_OF_SEARCH = {"length_penalty": 1.0, "early_stopping": False}
# Field -> values that go with a beam search. None always does.
_HARMLESS_TO_SEARCH: Mapping[str, tuple[Any, ...]] = {
    "temperature": (0,),
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "response_format": (),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
}


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    # As vLLM has it.
    continuous_usage_stats: bool | None = None


class CommonFields(msgspec.Struct, kw_only=True):
    """Fields of all three endpoints, one for each parameter of the API."""

    model: limits.ModelName
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: limits.Temperature | None = None
    top_p: limits.TopP | None = None
    seed: limits.Seed | None = None
    stop: limits.StopStrings | None = None
    presence_penalty: limits.Penalty | None = None
    frequency_penalty: limits.Penalty | None = None
    logit_bias: limits.LogitBias | None = None
    # As vLLM has them.
    top_k: limits.TopK | None = None
    min_p: limits.MinP | None = None
    repetition_penalty: limits.RepetitionPenalty | None = None
    min_tokens: limits.MinTokens | None = None
    ignore_eos: bool | None = None
    stop_token_ids: limits.StopTokenIds | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    # Requests that share much: they should meet the same worker again.
    prompt_cache_key: limits.CacheHint | None = None
    # Separates this client's prefix cache from the rest of its tenant's.
    cache_salt: limits.CacheSalt | None = None
    # Accepted, without effect.
    user: limits.UserId | None = None
    safety_identifier: limits.SafetyId | None = None
    metadata: limits.Metadata | None = None


class SharedFields(CommonFields, kw_only=True):
    """Fields of both completion endpoints."""

    n: limits.NumChoices | None = None
    # As vLLM has them.
    add_special_tokens: bool | None = None
    priority: limits.Priority | None = None
    prompt_logprobs: limits.NumLogprobs | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    response_format: structured.ResponseFormat | None = None
    # As vLLM has them now, and as it had them before.
    structured_outputs: structured.StructuredOutputs | None = None
    guided_json: dict[str, Any] | limits.SchemaText | None = None
    guided_regex: limits.Regex | None = None
    guided_choice: limits.AnswerChoices | None = None
    guided_grammar: limits.GrammarText | None = None
    use_beam_search: bool | None = None
    length_penalty: limits.LengthPenalty | None = None
    # As transformers has it.
    early_stopping: bool | Literal["never"] | None = None


def structure_of(fields: SharedFields) -> Structure | None:
    """The form that the answer must have, if any. Raises InvalidRequest."""
    found: dict[str, Structure] = {}
    if fields.response_format is not None:
        found |= structured.of_format(fields.response_format)
    if fields.structured_outputs is not None:
        found |= structured.of_outputs(fields.structured_outputs, "structured_outputs.")
    guided = structured.StructuredOutputs(
        json=fields.guided_json,
        regex=fields.guided_regex,
        choice=fields.guided_choice,
        grammar=fields.guided_grammar,
    )
    if guided != structured.StructuredOutputs():
        found |= structured.of_outputs(guided, "guided_")
    return structured.only_one(found) if found else None


def sampling_of(
    fields: CommonFields, max_tokens: int | None, structure: Structure | None
) -> dict[str, Any]:
    """The arguments of GenerationRequest that all endpoints fill alike. Raises InvalidRequest."""
    options = fields.stream_options or StreamOptions()
    if fields.stream_options is not None and not fields.stream:
        raise InvalidRequest("stream_options: only with stream true", param="stream_options")
    if options.include_obfuscation:
        raise unsupported_field("stream_options.include_obfuscation", "got true")
    if max_tokens is not None and (fields.min_tokens or 0) > max_tokens:
        raise InvalidRequest(
            f"min_tokens: got {fields.min_tokens}, but the answer has at most {max_tokens}",
            param="min_tokens",
        )
    stop = fields.stop or []
    return {
        "max_tokens": max_tokens,
        "stream": bool(fields.stream),
        "include_usage": bool(options.include_usage),
        "num_choices": getattr(fields, "n", None) or 1,
        "temperature": fields.temperature,
        "top_p": fields.top_p,
        "seed": fields.seed,
        "rules": _rules_of(fields, structure),
        "stop": (stop,) if isinstance(stop, str) else tuple(stop),
        "includes_stop": bool(fields.include_stop_str_in_output),
        "shows_special_tokens": fields.skip_special_tokens is False,
        "cache_salt": fields.cache_salt or "",
        "session": fields.prompt_cache_key or "",
    }


def extras_of(fields: SharedFields) -> Extras:
    """The details of tokens that the answer tells. Raises InvalidRequest."""
    if fields.stream and fields.prompt_logprobs is not None:
        raise unsupported_field("prompt_logprobs", "does not go with stream")
    if fields.use_beam_search and fields.prompt_logprobs is not None:
        raise unsupported_field("prompt_logprobs", "does not go with use_beam_search")
    options, has_ids = fields.stream_options or StreamOptions(), bool(fields.return_token_ids)
    has_usage = bool(options.continuous_usage_stats and options.include_usage)
    return Extras(
        token_ids=has_ids,
        num_prompt_logprobs=fields.prompt_logprobs,
        names_by_id=bool(fields.return_tokens_as_token_ids),
        running_usage=has_usage,
        of_prompt=has_ids or fields.prompt_logprobs is not None,
        counts_tokens=has_ids or has_usage,
    )


def _rules_of(fields: CommonFields, structure: Structure | None) -> TokenRules:
    biases = fields.logit_bias or {}
    return TokenRules(
        top_k=max(fields.top_k or 0, 0),
        min_p=fields.min_p or 0.0,
        presence_penalty=fields.presence_penalty or 0.0,
        frequency_penalty=fields.frequency_penalty or 0.0,
        repetition_penalty=fields.repetition_penalty or 1.0,
        logit_bias=tuple((int(token_id), bias) for token_id, bias in biases.items()),
        min_tokens=fields.min_tokens or 0,
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        ignore_eos=bool(fields.ignore_eos),
        structure=structure,
    )


def max_tokens_of(old: int | None, new: int | None) -> int | None:
    """The limit from both of OpenAI's names. Raises InvalidRequest when they differ."""
    if old is not None and new is not None and old != new:
        raise InvalidRequest(
            f"max_completion_tokens: got {new}, but max_tokens {old}; give one of them",
            param="max_completion_tokens",
        )
    return old if new is None else new


def template_kwargs_of(effort: str | None) -> dict[str, Any]:
    """The variables of chat templates by which an effort of reasoning is asked for."""
    if effort is None:
        return {}
    # The names in templates of Qwen and GLM, and of DeepSeek.
    if effort == "none":
        return {"enable_thinking": False, "thinking": False}
    return {"reasoning_effort": effort}


def usage_object(usage: Usage) -> dict[str, Any]:
    """OpenAI's usage of the completion endpoints."""
    return {
        "prompt_tokens": usage.num_prompt_tokens,
        "completion_tokens": usage.num_output_tokens,
        "total_tokens": usage.num_prompt_tokens + usage.num_output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.num_cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.num_reasoning_tokens},
    }


def search_of(fields: SharedFields, num_logprobs: int | None) -> BeamSearch | None:
    """The beam search that the fields ask for, if they do. Raises InvalidRequest.

    The fields are as vLLM has them: use_beam_search, with `n` as the number of beams. A search
    takes the likeliest tokens as they are. So fields that choose or change tokens in another way
    are refused beside it, by name, unless their value asks for nothing.
    """
    if not fields.use_beam_search:
        for name, default in _DEFAULTS_OF_SEARCH.items():
            if getattr(fields, name) not in (None, default):
                raise InvalidRequest(f"{name}: only with use_beam_search true", param=name)
        return None
    for name, harmless in _HARMLESS_TO_SEARCH.items():
        value = getattr(fields, name, None)
        if value is not None and value not in harmless and not _asks_nothing(value):
            raise unsupported_field(name, "does not go with use_beam_search")
    if num_logprobs is not None:
        raise unsupported_field("logprobs", "does not go with use_beam_search")
    penalty = 1.0 if fields.length_penalty is None else fields.length_penalty
    return BeamSearch(penalty, fields.early_stopping or False)


def _asks_nothing(value: Any) -> bool:
    """True for a response format that is plain text."""
    return getattr(value, "type", None) == "text"

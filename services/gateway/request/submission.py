"""A validated request as the tokenizer and the decode worker want it."""

import random
from array import array
from dataclasses import replace

from baton.wire.failures import InvalidRequest, quoted
from baton.wire.prefix_hash import TOKEN_BYTES
from baton.wire.suspects import request_fingerprint
from baton.wire.v1 import router_pb2, sampling_pb2, tokenizer_pb2, worker_pb2
from services.gateway.openai.generation import ChatMessages, GenerationRequest, PlainText, Structure
from services.gateway.request.state import Exchange
from services.gateway.routing.models import ServedModel
from services.gateway.text.choice_text import ChoiceText
from services.gateway.text.detokenize import TextModel, TokenTexts
from services.gateway.text.logprob_trail import LogprobTrail
from services.gateway.text.prompt_echo import PromptEcho
from services.gateway.text.stop_strings import StopMatcher, StopPattern

# OpenAI's defaults.
DEFAULT_TEMPERATURE = 1.0
DEFAULT_TOP_P = 1.0
# Text before a plain completion that decides whether its first token starts with a space.
_CONTEXT_TOKENS = 6
# Log probabilities of an echoed prompt: tokens x (1 + logprobs) x choices. Some 5 MB of JSON, which
# takes the event loop a quarter of a second.
MAX_PROMPT_LOGPROBS = 131_072
_EARLY_STOPPING: dict[bool | str, sampling_pb2.EarlyStopping] = {
    False: sampling_pb2.EARLY_STOPPING_UNSPECIFIED,
    True: sampling_pb2.EARLY_STOPPING_FULL,
    "never": sampling_pb2.EARLY_STOPPING_NEVER,
}


def with_defaults(request: GenerationRequest, text_model: TextModel) -> GenerationRequest:
    """The request with the sampling values that will be used."""
    temperature = request.temperature
    if request.search is not None:
        temperature = 0.0
    elif temperature is None:
        temperature = text_model.default_temperature
    return replace(
        request,
        temperature=DEFAULT_TEMPERATURE if temperature is None else temperature,
        top_p=DEFAULT_TOP_P if request.top_p is None else request.top_p,
    )


def seed_of(request: GenerationRequest, rng: random.Random) -> int:
    """The client's seed as an unsigned number, or a drawn one."""
    return rng.getrandbits(63) if request.seed is None else request.seed % 2**64


def check(request: GenerationRequest, model: ServedModel, num_prompt_tokens: int) -> None:
    """What only the model and the tokenized prompt tell. Raises InvalidRequest."""
    if num_prompt_tokens >= model.max_model_len:
        raise InvalidRequest(
            f"the prompt has {num_prompt_tokens} tokens; "
            f"the model takes {model.max_model_len} with the answer",
            reason="context_length_exceeded",
        )
    rules = request.rules
    named = {"stop_token_ids": rules.stop_token_ids, "logit_bias": [t for t, _ in rules.logit_bias]}
    for param, ids in named.items():
        if ids and max(ids) >= model.vocab_size:
            message = f"{param}: token id {quoted(max(ids))} is not below {model.vocab_size}"
            raise InvalidRequest(message, reason="invalid_token_id", param=param)
    if is_judged(request):
        num = num_prompt_tokens * (1 + (request.num_logprobs or 0)) * request.num_choices
        if num > MAX_PROMPT_LOGPROBS:
            raise InvalidRequest(
                f"echo: prompt tokens x (1 + logprobs) x n is {num}; at most {MAX_PROMPT_LOGPROBS}",
                param="echo",
            )


def is_judged(request: GenerationRequest) -> bool:
    """Logprobs of the prompt are wanted: the decode worker prefills it by itself."""
    return request.echo and request.num_logprobs is not None


def max_tokens_of(request: GenerationRequest, room: int) -> int:
    """Most output tokens of a choice. 0 = only the prompt is wanted: one token is still sampled,
    because that ends the prefill, and thrown away."""
    wanted = room if request.max_tokens is None else max(request.max_tokens, 1)
    return min(wanted, room)


def expected_tokens(x: Exchange, default: int) -> int:
    """Output tokens of one choice that are reserved at first."""
    assert x.request is not None, "validated before"
    most = x.progress.max_tokens
    return most if x.request.max_tokens is not None else min(default, most)


def encode_request(x: Exchange) -> tokenizer_pb2.EncodeRequest:
    """What the tokenizer is asked; one token must be left for the answer."""
    assert x.request is not None, "validated before"
    assert x.model is not None, "validated before"
    encode = tokenizer_pb2.EncodeRequest(
        request_id=x.request_id,
        model_fp=x.model.model_fp,
        cache_key=x.progress.cache_key,
        block_size=x.model.block_size,
        max_prompt_tokens=max(x.model.max_model_len - 1, 1),
    )
    prompt = x.request.prompt
    if isinstance(prompt, ChatMessages):
        encode.chat.messages_json = prompt.messages_json
        encode.chat.add_generation_prompt = True
    elif isinstance(prompt, PlainText):
        encode.text = prompt.text
    else:
        encode.token_ids = prompt.token_ids
    return encode


def pick_request(x: Exchange, server_secret: bytes) -> router_pb2.PickRequest:
    """What the router is asked for the next attempt; who asks adds whom it shall leave out."""
    request, progress, model, principal = x.request, x.progress, x.model, x.principal
    assert request is not None, "validated before"
    assert progress.prompt is not None, "tokenized before"
    assert model is not None, "validated before"
    assert principal is not None, "authenticated before"
    # A beam search begins anew; other choices are prefilled with the tokens that they have.
    ahead = received(x) if request.search is None else dict.fromkeys(received(x), 0)
    left = progress.max_tokens - min(ahead.values())
    return router_pb2.PickRequest(
        request_id=x.request_id,
        model_fp=model.model_fp,
        block_hashes=progress.prompt.block_hashes,
        num_prompt_tokens=progress.num_prompt_tokens + max(ahead.values()),
        expected_output_tokens=min(progress.num_expected_tokens, left),
        tenant=principal.tenant,
        priority=principal.priority,
        num_choices=request.num_choices if request.search is not None else len(ahead),
        local_prefill=_num_prompt_logprobs(x) >= 0,
        poison_fingerprint=_fingerprint(x, server_secret),
    )


def _fingerprint(x: Exchange, server_secret: bytes) -> bytes:
    """Equal for a client's repeats of this request, and for nobody else's."""
    assert x.request is not None, "validated before"
    assert x.progress.prompt is not None, "tokenized before"
    assert x.model is not None, "validated before"
    assert x.principal is not None, "authenticated before"
    sampling = _sampling(x)
    if x.request.seed is None:
        sampling.seed = 0  # drawn anew for each repeat
    parts = (
        x.principal.tenant.encode(),
        x.model.model_fp.encode(),
        x.progress.prompt.token_ids,
        sampling.SerializeToString(deterministic=True),
    )
    return request_fingerprint(server_secret, parts)


def received(x: Exchange) -> dict[int, int]:
    """By open choice: the output tokens that reached this gateway."""
    open_choices = (choice for choice in x.progress.choices if choice.finish_reason is None)
    return {choice.choice: len(choice.token_ids) for choice in open_choices}


def submit_frame(
    x: Exchange, pick: router_pb2.PickResponse, initial_credit: int
) -> worker_pb2.Submit:
    """The submit of the current attempt, behind what earlier ones brought; its link sets the
    handle."""
    progress, model, principal = x.progress, x.model, x.principal
    assert progress.prompt is not None, "tokenized before"
    assert model is not None, "validated before"
    assert principal is not None, "authenticated before"
    sampling = _sampling(x)
    sampling.num_prompt_logprobs = _num_prompt_logprobs(x)
    choices = progress.choices
    return worker_pb2.Submit(
        request_id=x.request_id,
        epoch=progress.num_attempts,
        model_fp=model.model_fp,
        prompt_ids=progress.prompt.token_ids,
        num_prompt_tokens=progress.num_prompt_tokens,
        block_hashes=progress.prompt.block_hashes,
        cache_key=progress.cache_key,
        sampling=sampling,
        emitted=[
            worker_pb2.EmittedTokens(choice=number, token_ids=choices[number].token_ids.tobytes())
            for number, num_tokens in received(x).items()
            if num_tokens
        ],
        ended_choices=[each.choice for each in choices if each.finish_reason is not None],
        deadline_ms=max(int(x.deadlines.left_s * 1000), 1),
        traceparent=x.span.traceparent,
        priority=principal.priority,
        prefill_endpoint=pick.prefill.endpoint if pick.HasField("prefill") else "",
        initial_credit_tokens=initial_credit,
        is_suspect=progress.crashes.is_suspect,
    )


def echo_of(x: Exchange) -> PromptEcho | None:
    """The echo of the request, if one is wanted."""
    request, prompt, text_model = x.request, x.progress.prompt, x.progress.text_model
    assert request is not None, "validated before"
    if not request.echo or isinstance(request.prompt, ChatMessages):
        return None
    assert prompt is not None, "tokenized before"
    assert text_model is not None, "tokenized before"
    judged = is_judged(request)
    return PromptEcho(request.prompt, prompt.token_ids, text_model, judged=judged)


def choice_texts(x: Exchange) -> list[ChoiceText]:
    """Fresh choices, before their first token."""
    request, model = x.request, x.model
    assert request is not None, "validated before"
    assert model is not None, "validated before"
    silent_ids = model.eos_token_ids | frozenset(request.rules.stop_token_ids)
    first_offset = 0 if x.progress.echo is None else len(x.progress.echo.text)
    choices = []
    for choice in range(request.num_choices):
        texts, stops = _texts(x), StopMatcher(_patterns(request))
        trail = _trail(x, first_offset)
        choices.append(ChoiceText(choice, texts, stops, silent_ids, trail))
        choices[-1].is_mute = request.max_tokens == 0
    return choices


def _num_prompt_logprobs(x: Exchange) -> int:
    """How many are still wanted of each prompt token; -1 = none."""
    assert x.request is not None, "validated before"
    echo = x.progress.echo
    if not is_judged(x.request) or (echo is not None and echo.is_complete):
        return -1
    return x.request.num_logprobs or 0


def _patterns(request: GenerationRequest) -> tuple[StopPattern, ...]:
    return tuple(StopPattern.of(stop) for stop in request.stop)


def _texts(x: Exchange) -> TokenTexts:
    assert x.request is not None, "validated before"
    assert x.progress.text_model is not None, "tokenized before"
    context_ids: list[int] = []
    if not isinstance(x.request.prompt, ChatMessages) and x.progress.prompt is not None:
        tail = x.progress.prompt.token_ids[-_CONTEXT_TOKENS * TOKEN_BYTES :]
        context_ids = array("I", tail).tolist()
    return TokenTexts(x.progress.text_model.decoder, context_ids)


def _trail(x: Exchange, first_offset: int) -> LogprobTrail | None:
    assert x.request is not None, "validated before"
    assert x.progress.text_model is not None, "tokenized before"
    if x.request.num_logprobs is None:
        return None
    return LogprobTrail(x.progress.text_model.token_bytes, first_offset)


def _sampling(x: Exchange) -> sampling_pb2.Sampling:
    request = x.request
    assert request is not None, "validated before"
    assert request.temperature is not None, "defaults are filled in"
    assert request.top_p is not None, "defaults are filled in"
    rules, num_logprobs = request.rules, request.num_logprobs
    sampling = sampling_pb2.Sampling(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=rules.top_k,
        min_p=rules.min_p,
        presence_penalty=rules.presence_penalty,
        frequency_penalty=rules.frequency_penalty,
        repetition_penalty=rules.repetition_penalty,
        logit_bias=dict(rules.logit_bias),
        seed=x.progress.seed,
        max_tokens=x.progress.max_tokens,
        min_tokens=rules.min_tokens,
        ignore_eos=rules.ignore_eos,
        stop_token_ids=rules.stop_token_ids,
        num_choices=request.num_choices,
        num_logprobs=-1 if num_logprobs is None else num_logprobs,
        num_prompt_logprobs=(num_logprobs or 0) if is_judged(request) else -1,
    )
    if rules.structure is not None:
        _set_structure(sampling, rules.structure)
    if request.search is not None:
        sampling.use_beam_search = True
        sampling.length_penalty = request.search.length_penalty
        sampling.early_stopping = _EARLY_STOPPING[request.search.early_stopping]
    return sampling


def _set_structure(sampling: sampling_pb2.Sampling, structure: Structure) -> None:
    match structure.kind:
        case "json_schema":
            sampling.json_schema = structure.text
        case "json_object":
            sampling.json_object = True
        case "regex":
            sampling.regex = structure.text
        case "choice":
            sampling.choices.values.extend(structure.choices)
        case "ebnf":
            sampling.ebnf_grammar = structure.text

"""A validated request as the tokenizer and the decode worker want it."""

import random
from array import array
from dataclasses import replace

from baton.wire.v1 import router_pb2, sampling_pb2, tokenizer_pb2, worker_pb2
from services.gateway.choice_text import ChoiceText
from services.gateway.detokenize import TextModel, TokenTexts
from services.gateway.exchange import Exchange
from services.gateway.generation import ChatMessages, GenerationRequest, PlainText
from services.gateway.stop_strings import StopMatcher, StopPattern

# OpenAI's defaults.
DEFAULT_TEMPERATURE = 1.0
DEFAULT_TOP_P = 1.0
# Text before a plain completion that decides whether its first token starts with a space.
_CONTEXT_TOKENS = 6
_TOKEN_BYTES = 4


def with_defaults(request: GenerationRequest, text_model: TextModel) -> GenerationRequest:
    """The request with the sampling values that will be used."""
    temperature = request.temperature
    if temperature is None:
        temperature = text_model.default_temperature
    return replace(
        request,
        temperature=DEFAULT_TEMPERATURE if temperature is None else temperature,
        top_p=DEFAULT_TOP_P if request.top_p is None else request.top_p,
    )


def seed_of(request: GenerationRequest, rng: random.Random) -> int:
    """The client's seed as an unsigned number, or a drawn one."""
    return rng.getrandbits(63) if request.seed is None else request.seed % 2**64


def encode_request(x: Exchange, cache_key: bytes) -> tokenizer_pb2.EncodeRequest:
    """What the tokenizer is asked; one token must be left for the answer."""
    assert x.request is not None, "validated before"
    assert x.model is not None, "validated before"
    encode = tokenizer_pb2.EncodeRequest(
        request_id=x.request_id,
        model_fp=x.model.model_fp,
        cache_key=cache_key,
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


def submit_frame(
    x: Exchange, pick: router_pb2.PickResponse, initial_credit: int, left_s: float
) -> worker_pb2.Submit:
    """The submit of the current attempt; its link sets the handle."""
    progress, model, principal = x.progress, x.model, x.principal
    assert progress.prompt is not None, "tokenized before"
    assert model is not None, "validated before"
    assert principal is not None, "authenticated before"
    return worker_pb2.Submit(
        request_id=x.request_id,
        epoch=progress.num_attempts,
        model_fp=model.model_fp,
        prompt_ids=progress.prompt.token_ids,
        num_prompt_tokens=progress.num_prompt_tokens,
        block_hashes=progress.prompt.block_hashes,
        sampling=_sampling(x),
        deadline_ms=max(int(left_s * 1000), 1),
        traceparent=x.span.traceparent,
        priority=principal.priority,
        prefill_endpoint=pick.prefill.endpoint if pick.HasField("prefill") else "",
        initial_credit_tokens=initial_credit,
    )


def choice_texts(x: Exchange) -> list[ChoiceText]:
    """Fresh choices, before their first token."""
    request, model, text_model = x.request, x.model, x.progress.text_model
    assert request is not None, "validated before"
    assert model is not None, "validated before"
    assert text_model is not None, "tokenized before"
    patterns = tuple(StopPattern.of(stop) for stop in request.stop)
    context_ids: list[int] = []
    if not isinstance(request.prompt, ChatMessages) and x.progress.prompt is not None:
        tail = x.progress.prompt.token_ids[-_CONTEXT_TOKENS * _TOKEN_BYTES :]
        context_ids = array("I", tail).tolist()
    return [
        ChoiceText(
            choice,
            TokenTexts(text_model.decoder, context_ids),
            StopMatcher(patterns),
            model.eos_token_ids,
        )
        for choice in range(request.num_choices)
    ]


def _sampling(x: Exchange) -> sampling_pb2.Sampling:
    request = x.request
    assert request is not None, "validated before"
    assert request.temperature is not None, "defaults are filled in"
    assert request.top_p is not None, "defaults are filled in"
    return sampling_pb2.Sampling(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        seed=x.progress.seed,
        max_tokens=x.progress.max_tokens,
        ignore_eos=request.ignore_eos,
        stop_token_ids=request.stop_token_ids,
        num_choices=request.num_choices,
        num_logprobs=-1,
        num_prompt_logprobs=-1,
    )

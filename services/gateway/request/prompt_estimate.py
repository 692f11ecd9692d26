"""The tokens of a prompt as its size tells, before it is tokenized.

Requests are counted first, and a prompt is tokenized only when there is room for it. What prompts
of a model had lately says how many tokens one of this size has at most; the longest token of the
model, how many it has at least.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass

from baton.wire.failures import InvalidRequest
from baton.wire.prefix_hash import TOKEN_BYTES
from services.gateway.openai.generation import (
    ChatMessages,
    GenerationRequest,
    PlainText,
    PromptTokens,
)
from services.gateway.routing.models import ServedModel

# Another reservation follows where an estimate was too low; one too high is corrected on the way.
_MARGIN = 1.125
# The share by which a ratio comes down to that of a prompt with fewer tokens.
_DECAY = 1 / 64
# Templates leave out parts of messages, JSON escapes characters, normalizers join them: the text
# that is tokenized has at least this part of the bytes.
_LEAST_TEXT = 1 / 4
_MAX_RATIOS = 4096

# Model, chat or plain text, and the size in bits: a short chat is mostly template.
_Kind = tuple[str, bool, int]
_Prompt = ChatMessages | PlainText | PromptTokens


@dataclass(frozen=True, slots=True)
class PromptEstimate:
    """The number of tokens to hold for a prompt, and the fewest that it can have; 0 = the number is
    exact."""

    num_tokens: int
    fewest: int = 0


class PromptEstimates:
    """The tokens of each byte in the prompts of one gateway."""

    def __init__(self) -> None:
        self._ratios: OrderedDict[_Kind, float] = OrderedDict()

    def estimate(
        self, request: GenerationRequest, model: ServedModel, longest_token: int
    ) -> PromptEstimate:
        """The tokens of a prompt. `longest_token`: the bytes of the model's longest; 0 = not known.
        Raises InvalidRequest for a prompt that can never fit."""
        return self._estimate(request.prompt, request.max_tokens, model, longest_token)

    def estimate_shortened(
        self, request: GenerationRequest, model: ServedModel, most_tokens: int
    ) -> PromptEstimate:
        """As `estimate`, of a conversation that is shortened to `most_tokens` if it is too long."""
        likely = self._likely(request.prompt, _num_bytes(request.prompt), model)
        return PromptEstimate(max(min(likely, most_tokens), 1), 1)

    def estimate_all(
        self, request: GenerationRequest, model: ServedModel, longest_token: int
    ) -> PromptEstimate:
        """As `estimate`, of all prompts of a request together."""
        prompts = request.prompts or (request.prompt,)
        each = [
            self._estimate(prompt, request.max_tokens, model, longest_token) for prompt in prompts
        ]
        num_tokens = sum(one.num_tokens for one in each)
        if not any(one.fewest for one in each):
            return PromptEstimate(num_tokens)
        return PromptEstimate(num_tokens, sum(one.fewest or one.num_tokens for one in each))

    def _estimate(
        self, prompt: _Prompt, max_tokens: int | None, model: ServedModel, longest_token: int
    ) -> PromptEstimate:
        """As `estimate`. A list has thousands of prompts."""
        if isinstance(prompt, PromptTokens):
            num_tokens = len(prompt.token_ids) // TOKEN_BYTES
            _check_room(prompt, max_tokens, model, num_tokens)
            return PromptEstimate(num_tokens)
        num_bytes = _num_bytes(prompt)
        fewest = int(num_bytes * _LEAST_TEXT / longest_token) if longest_token else 0
        _check_room(prompt, max_tokens, model, fewest)
        likely = min(self._likely(prompt, num_bytes, model), model.max_model_len - 1)
        return PromptEstimate(max(likely, fewest, 1), max(fewest, 1))

    def _likely(self, prompt: _Prompt, num_bytes: int, model: ServedModel) -> int:
        ratio = self._ratios.get(_kind_of(prompt, num_bytes, model), 1 / _MARGIN)
        return math.ceil(ratio * _MARGIN * num_bytes)

    def note(self, request: GenerationRequest, model: ServedModel, num_tokens: int) -> None:
        """Note the tokens that a prompt has in truth."""
        if isinstance(request.prompt, PromptTokens):
            return
        num_bytes = num_prompt_bytes(request)
        kind, ratio = _kind_of(request.prompt, num_bytes, model), num_tokens / max(num_bytes, 1)
        last = self._ratios.get(kind, ratio)
        self._ratios[kind] = max(ratio, last + (ratio - last) * _DECAY)
        self._ratios.move_to_end(kind)
        if len(self._ratios) > _MAX_RATIOS:
            self._ratios.popitem(last=False)


def num_prompt_bytes(request: GenerationRequest) -> int:
    """The size of the prompt as it was sent; of all prompts that are reserved together."""
    if request.vector is not None and request.prompts:
        return sum(map(_num_bytes, request.prompts))
    return _num_bytes(request.prompt)


def _num_bytes(prompt: _Prompt) -> int:
    match prompt:
        case ChatMessages(messages_json, tools):
            return len(messages_json) + (0 if tools is None else len(tools.tools_json))
        case PlainText(text):
            return len(text) if text.isascii() else len(text.encode())
        case PromptTokens(token_ids):
            return len(token_ids)


def _kind_of(prompt: _Prompt, num_bytes: int, model: ServedModel) -> _Kind:
    return model.model_fp, isinstance(prompt, ChatMessages), num_bytes.bit_length()


def _check_room(prompt: _Prompt, max_tokens: int | None, model: ServedModel, fewest: int) -> None:
    if fewest < model.max_model_len + (max_tokens == 0):
        return
    param = "messages" if isinstance(prompt, ChatMessages) else "prompt"
    raise InvalidRequest(
        f"This model's maximum context length is {model.max_model_len} tokens, of which at least"
        f" 1 is for the answer. However, your {param} resulted in at least {fewest} tokens."
        f" Please reduce the length of the {param}.",
        reason="context_length_exceeded",
        param=param,
    )

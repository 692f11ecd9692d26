"""/tokenize and /detokenize: text or a conversation as token ids, and back; no model answers."""

from array import array
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from baton.wire.failures import BatonError, InvalidRequest
from services.gateway.openai import chat, chat_tools, limits
from services.gateway.openai.collected import JsonList, filled
from services.gateway.openai.decoding import Unsupported, decode_object, to_struct
from services.gateway.openai.generation import (
    ChatMessages,
    Delta,
    Extras,
    GenerationRequest,
    Identity,
    PlainText,
    PromptTokens,
    Usage,
)

UNSUPPORTED: Unsupported = {
    "chat_template": (),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
}

TokenIds = Annotated[list[limits.TokenId], Meta(max_length=2_000_000)]


class TokenizeFields(msgspec.Struct, kw_only=True):
    """The fields of a request to tokenize a prompt or a conversation."""

    model: limits.ModelName
    prompt: limits.Text | None = None
    messages: list[dict[str, Any]] | None = None
    tools: chat_tools.ToolList | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeFields(msgspec.Struct, kw_only=True):
    """The fields of a request for the text of tokens."""

    model: limits.ModelName
    tokens: TokenIds


def parse(body: bytes) -> GenerationRequest:
    """The request in the body of /tokenize. Raises InvalidRequest."""
    fields = to_struct(decode_object(body), TokenizeFields, UNSUPPORTED)
    return GenerationRequest(
        endpoint="tokenize",
        model=fields.model,
        prompt=_prompt(fields),
        adds_special_tokens=fields.add_special_tokens,
        extras=Extras(token_ids=True, token_names=bool(fields.return_token_strs)),
    )


def parse_tokens(body: bytes) -> GenerationRequest:
    """The request in the body of /detokenize. Raises InvalidRequest."""
    fields = to_struct(decode_object(body), DetokenizeFields, {})
    prompt = PromptTokens(array("I", fields.tokens).tobytes())
    return GenerationRequest(endpoint="detokenize", model=fields.model, prompt=prompt)


def _prompt(fields: TokenizeFields) -> ChatMessages | PlainText:
    if (fields.prompt is None) == (fields.messages is None):
        raise InvalidRequest("prompt: expected either prompt or messages", param="prompt")
    if fields.prompt is not None:
        return PlainText(fields.prompt)
    turns = chat.conversation(fields.messages or [])
    tools = chat_tools.tools_of(fields.tools, None, is_parallel=True)
    has_calls = any(turn["role"] == "tool" or "tool_calls" in turn for turn in turns)
    return chat.conversation_of(
        ChatMessages(msgspec.json.encode(turns), tools, has_calls),
        fields.chat_template_kwargs,
        fields.add_generation_prompt,
        continues_final=bool(fields.continue_final_message),
    )


class Unstreamed:
    """An answer that never streams."""

    def opening(self) -> bytes:
        raise AssertionError("this endpoint has no stream")

    def deltas(self, batch: list[Delta]) -> bytes:
        raise AssertionError("this endpoint has no stream")

    def closing(self, usage: Usage) -> list[bytes]:
        raise AssertionError("this endpoint has no stream")

    def failure(self, error: BatonError) -> list[bytes]:
        raise AssertionError("this endpoint has no stream")


class TokenizeAnswer(Unstreamed):
    """The tokens, in vLLM's form. A million of them are encoded as they come, as logprobs are."""

    def __init__(self, identity: Identity, request: GenerationRequest) -> None:
        self._max_model_len = identity.max_model_len
        self._count = 0
        self._token_ids = JsonList()
        self._names = JsonList() if request.extras.token_names else None

    def collect(self, batch: list[Delta]) -> None:
        for details in (delta.details for delta in batch):
            if details is not None and details.token_ids:
                self._count += len(details.token_ids)
                self._token_ids.add(details.token_ids)
                if self._names is not None:
                    self._names.add(details.token_names)

    def whole(self, usage: Usage) -> list[bytes]:
        answer = {
            "count": self._count,
            "max_model_len": self._max_model_len,
            "tokens": JsonList.mark,
            "token_strs": None if self._names is None else JsonList.mark,
        }
        lists = [self._token_ids] if self._names is None else [self._token_ids, self._names]
        return filled(msgspec.json.encode(answer), lists)


class DetokenizeAnswer(Unstreamed):
    """The text of the tokens, in vLLM's form."""

    def __init__(self, identity: Identity, request: GenerationRequest) -> None:
        # JSON, encoded as it comes.
        self._texts: list[bytes] = []

    def collect(self, batch: list[Delta]) -> None:
        self._texts += [msgspec.json.encode(delta.text)[1:-1] for delta in batch]

    def whole(self, usage: Usage) -> list[bytes]:
        return [b'{"prompt":"', *self._texts, b'"}']

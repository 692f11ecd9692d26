"""/v1/chat/completions: the request as typed fields, the answer as JSON or chunks."""

from typing import Any

import msgspec

from baton.wire.failures import BatonError, InvalidRequest
from services.gateway.openai import limits, logprob_objects, sse
from services.gateway.openai.collected import CollectedChoice, filled, logprob_lists
from services.gateway.openai.decoding import decode_object, described, to_struct, unsupported_field
from services.gateway.openai.errors import choice_error, error_body
from services.gateway.openai.generation import (
    ChatMessages,
    Delta,
    GenerationRequest,
    Identity,
    Usage,
)
from services.gateway.openai.shared_fields import (
    HARMLESS_VALUES,
    SharedFields,
    max_tokens_of,
    sampling_of,
    search_of,
    structure_of,
    usage_object,
)

ROLES = ("system", "developer", "user", "assistant")

UNSUPPORTED = {
    **HARMLESS_VALUES,
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "web_search_options": (),
    "store": (False,),
}


class ChatMessage(msgspec.Struct, forbid_unknown_fields=True):
    """One message. The fields below `name` are those of an answer that clients send back."""

    role: limits.Label
    content: limits.Text | limits.Parts | None = None
    name: limits.Label | None = None
    refusal: None = None
    annotations: Any = None
    audio: Any = None
    function_call: Any = None
    tool_calls: Any = None
    tool_call_id: Any = None


class ChatFields(SharedFields):
    """The supported fields of a chat completion request."""

    messages: list[dict[str, Any]]
    max_tokens: limits.MaxTokens | None = None
    max_completion_tokens: limits.MaxTokens | None = None
    logprobs: bool | None = None
    top_logprobs: limits.NumLogprobs | None = None


def parse(body: bytes) -> GenerationRequest:
    """The request in a chat completion's body. Raises InvalidRequest."""
    fields = to_struct(decode_object(body), ChatFields, UNSUPPORTED)
    num_logprobs = _num_logprobs(fields)
    return GenerationRequest(
        endpoint="chat.completions",
        model=fields.model,
        prompt=ChatMessages(msgspec.json.encode(_conversation(fields.messages))),
        num_logprobs=num_logprobs,
        search=search_of(fields, num_logprobs),
        **sampling_of(
            fields,
            max_tokens_of(fields.max_tokens, fields.max_completion_tokens),
            structure_of(fields),
        ),
    )


def _num_logprobs(fields: ChatFields) -> int | None:
    if fields.logprobs:
        return fields.top_logprobs or 0
    if fields.top_logprobs:
        raise InvalidRequest("top_logprobs: only with logprobs true", param="top_logprobs")
    return None


def _conversation(messages: list[dict[str, Any]]) -> list[dict[str, str]]:
    if not 1 <= len(messages) <= limits.MAX_MESSAGES:
        raise InvalidRequest(
            f"messages: got {len(messages)} messages; expected 1 to {limits.MAX_MESSAGES}",
            param="messages",
        )
    return [_turn(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _turn(raw: dict[str, Any], place: str) -> dict[str, str]:
    message = _typed_message(raw, place)
    if message.role in ("tool", "function"):
        raise unsupported_field(f"{place}.role", "this version has no tools")
    if message.role not in ROLES:
        got = described(message.role)
        raise InvalidRequest(
            f"{place}.role: got {got}; expected one of {', '.join(ROLES)}", param=f"{place}.role"
        )
    for name in ("tool_calls", "function_call", "tool_call_id", "audio"):
        if getattr(message, name):
            raise unsupported_field(f"{place}.{name}", "this version does not have it")
    # Chat templates know the role system, not its newer name.
    role = "system" if message.role == "developer" else message.role
    turn = {"role": role, "content": text_of(message.content, f"{place}.content", ("text",))}
    return turn if message.name is None else {**turn, "name": message.name}


def _typed_message(raw: dict[str, Any], place: str) -> ChatMessage:
    try:
        return to_struct(raw, ChatMessage, {})
    except InvalidRequest as error:
        param = f"{place}.{error.param}"
        raise InvalidRequest(f"{place}.{error.message}", reason=error.reason, param=param) from None


def text_of(content: str | list[dict[str, Any]] | None, place: str, kinds: tuple[str, ...]) -> str:
    """A message's text. Parts are joined by newlines. Raises InvalidRequest for other content."""
    if content is None:
        raise InvalidRequest(f"{place}: got null; expected text", param=place)
    if isinstance(content, str):
        return content
    return "\n".join(
        _part_text(part, f"{place}[{index}]", kinds) for index, part in enumerate(content)
    )


def _part_text(part: dict[str, Any], place: str, kinds: tuple[str, ...]) -> str:
    kind = part.get("type")
    if kind not in kinds:
        raise InvalidRequest(
            f"{place}: got type {described(kind)}; this version takes text only",
            reason="unsupported_content",
            param=place,
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequest(f"{place}.text: expected a string", param=f"{place}.text")
    for name, value in part.items():
        if name not in ("type", "text") and value not in (None, []):
            raise unsupported_field(f"{place}.{name}", "no such parameter")
    return text


class ChatAnswer:
    """One answer in chat completion form; stateful along one stream."""

    def __init__(self, identity: Identity, request: GenerationRequest) -> None:
        self._identity = identity
        self._include_usage = request.include_usage
        self._has_logprobs = request.num_logprobs is not None
        self._collected = [
            CollectedChoice(choice, logprob_objects.chat_columns)
            for choice in range(identity.num_choices)
        ]
        self._templates = [
            sse.TextTemplate(self._chunk({"content": sse.TextTemplate.MARK}, choice))
            for choice in range(identity.num_choices)
        ]

    def opening(self) -> bytes:
        role = {"role": "assistant", "content": "", "refusal": None}
        choices = range(self._identity.num_choices)
        return b"".join(sse.data_event(self._chunk(role, choice)) for choice in choices)

    def deltas(self, batch: list[Delta]) -> bytes:
        events = []
        for delta in batch:
            if delta.logprobs:
                logprobs = logprob_objects.chat_object(delta.logprobs)
                content = {"content": delta.text}
                chunk = self._chunk(content, delta.choice, logprobs=logprobs)
                events.append(sse.data_event(chunk))
            elif delta.text:
                events.append(self._templates[delta.choice].render(delta.text))
            if delta.finish_reason:
                events.append(sse.data_event(self._last_chunk(delta)))
        return b"".join(events)

    def closing(self, usage: Usage) -> list[bytes]:
        if not self._include_usage:
            return [sse.DONE]
        return [sse.data_event(self._frame([], usage_object(usage))) + sse.DONE]

    def failure(self, error: BatonError) -> list[bytes]:
        return [b"data: " + error_body(error) + b"\n\n"]

    def collect(self, batch: list[Delta]) -> None:
        for delta in batch:
            self._collected[delta.choice].add(delta)

    def whole(self, usage: Usage) -> list[bytes]:
        body = msgspec.json.encode(
            {
                **self._head("chat.completion"),
                "choices": [self._choice_object(choice) for choice in self._collected],
                "usage": usage_object(usage),
            }
        )
        return filled(body, logprob_lists(self._collected))

    def _chunk(
        self,
        delta: dict[str, Any],
        choice: int,
        logprobs: object = None,
    ) -> object:
        entry = {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": None}
        return self._frame([entry], None)

    def _last_chunk(self, delta: Delta) -> object:
        entry = {
            "index": delta.choice,
            "delta": {},
            "logprobs": None,
            "finish_reason": delta.finish_reason,
            **choice_error(delta.spent_budget),
        }
        return self._frame([entry], None)

    def _choice_object(self, collected: CollectedChoice) -> dict[str, Any]:
        choice = collected.delta
        message: dict[str, Any] = {
            "role": "assistant",
            "content": choice.text,
            "refusal": None,
            "annotations": [],
        }
        logprobs = {**collected.logprob_marks, "refusal": None}
        return {
            "index": choice.choice,
            "message": message,
            "logprobs": logprobs if self._has_logprobs else None,
            "finish_reason": choice.finish_reason,
            **choice_error(choice.spent_budget),
        }

    def _frame(self, choices: list[object], usage: object) -> object:
        frame = {**self._head("chat.completion.chunk"), "choices": choices}
        return {**frame, "usage": usage} if self._include_usage else frame

    def _head(self, kind: str) -> dict[str, Any]:
        identity = self._identity
        return {
            "id": f"chatcmpl-{identity.request_id}",
            "object": kind,
            "created": identity.created_unix_s,
            "model": identity.model,
            "service_tier": "default",
            "system_fingerprint": f"fp_{identity.model_fp[:12]}",
        }

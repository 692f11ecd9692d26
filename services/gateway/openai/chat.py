"""/v1/chat/completions, the request: a conversation, with tools, as typed fields."""

from typing import Any

import msgspec

from baton.wire.failures import InvalidRequest
from services.gateway.openai import chat_tools, limits
from services.gateway.openai.decoding import decode_object, described, to_struct, unsupported_field
from services.gateway.openai.generation import ChatMessages, GenerationRequest, Tools
from services.gateway.openai.shared_fields import (
    HARMLESS_VALUES,
    SharedFields,
    extras_of,
    max_tokens_of,
    sampling_of,
    search_of,
    structure_of,
    template_kwargs_of,
)

# Of messages that are text; results of calls have the role tool.
ROLES = ("system", "developer", "user", "assistant")

UNSUPPORTED = {
    **HARMLESS_VALUES,
    "best_of": (1,),
    "echo": (False,),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
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
    tool_calls: list[chat_tools.ToolCall] | None = None
    tool_call_id: limits.UserId | None = None
    # Two names of one thing.
    reasoning_content: limits.Text | None = None
    reasoning: limits.Text | None = None
    # Added to an answer by OpenAI's and LiteLLM's client; they stand for what is there in text.
    parsed: Any = None
    provider_specific_fields: Any = None


class ChatFields(SharedFields):
    """The supported fields of a chat completion request."""

    messages: list[dict[str, Any]]
    max_tokens: limits.MaxTokens | None = None
    max_completion_tokens: limits.MaxTokens | None = None
    logprobs: bool | None = None
    top_logprobs: limits.NumLogprobs | None = None
    tools: chat_tools.ToolList | None = None
    tool_choice: chat_tools.ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    # As vLLM has them.
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    include_reasoning: bool | None = None
    reasoning_effort: limits.ReasoningEffort | None = None
    # Accepted, without effect.
    verbosity: limits.Verbosity | None = None


def parse(body: bytes) -> GenerationRequest:
    """The request in a chat completion's body. Raises InvalidRequest."""
    fields = to_struct(decode_object(body), ChatFields, UNSUPPORTED)
    num_logprobs = _num_logprobs(fields)
    functions = _tools(fields)
    turns = conversation(fields.messages)
    has_calls = any(turn["role"] == "tool" or "tool_calls" in turn for turn in turns)
    return GenerationRequest(
        endpoint="chat.completions",
        model=fields.model,
        prompt=conversation_of(
            ChatMessages(msgspec.json.encode(turns), functions, has_calls),
            template_kwargs_of(fields.reasoning_effort) | (fields.chat_template_kwargs or {}),
            fields.add_generation_prompt,
            continues_final=bool(fields.continue_final_message),
        ),
        adds_special_tokens=fields.add_special_tokens,
        shows_reasoning=fields.include_reasoning is not False,
        num_logprobs=num_logprobs,
        num_prompt_logprobs=fields.prompt_logprobs,
        extras=extras_of(fields),
        lateness=fields.priority or 0,
        search=search_of(fields, num_logprobs),
        **sampling_of(
            fields,
            max_tokens_of(fields.max_tokens, fields.max_completion_tokens),
            structure_of(fields),
        ),
    )


def conversation_of(
    messages: ChatMessages,
    template_kwargs: dict[str, Any] | None,
    adds_generation_prompt: bool | None,
    *,
    continues_final: bool,
) -> ChatMessages:
    """The conversation with what its request says about the chat template. Raises
    InvalidRequest."""
    if continues_final and adds_generation_prompt:
        message = "continue_final_message: does not go with add_generation_prompt true"
        raise InvalidRequest(message, param="continue_final_message")
    kwargs_json = msgspec.json.encode(template_kwargs) if template_kwargs else b""
    if len(kwargs_json) > limits.MAX_TEMPLATE_KWARGS_BYTES:
        raise InvalidRequest(
            f"chat_template_kwargs: got {len(kwargs_json)} bytes of JSON; expected at most "
            f"{limits.MAX_TEMPLATE_KWARGS_BYTES}",
            param="chat_template_kwargs",
        )
    return msgspec.structs.replace(
        messages,
        template_kwargs_json=kwargs_json,
        adds_generation_prompt=not continues_final and adds_generation_prompt is not False,
        continues_final=continues_final,
    )


def _num_logprobs(fields: ChatFields) -> int | None:
    if fields.logprobs:
        return fields.top_logprobs or 0
    if fields.top_logprobs:
        raise InvalidRequest("top_logprobs: only with logprobs true", param="top_logprobs")
    return None


def _tools(fields: ChatFields) -> Tools | None:
    if fields.tools is None and fields.tool_choice is None:
        return None
    found = chat_tools.tools_of(
        fields.tools, fields.tool_choice, is_parallel=fields.parallel_tool_calls is not False
    )
    if found is not None and fields.use_beam_search:
        raise unsupported_field("tools", "does not go with use_beam_search")
    return found


def conversation(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages as chat templates read them. Raises InvalidRequest."""
    if not 1 <= len(messages) <= limits.MAX_MESSAGES:
        raise InvalidRequest(
            f"messages: got {len(messages)} messages; expected 1 to {limits.MAX_MESSAGES}",
            param="messages",
        )
    return [_turn(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _turn(raw: dict[str, Any], place: str) -> dict[str, Any]:
    message = _typed_message(raw, place)
    if message.role == "tool":
        return _result(message, place)
    if message.role not in ROLES:
        got = described(message.role)
        raise InvalidRequest(
            f"{place}.role: got {got}; expected one of {', '.join(ROLES)}, tool",
            param=f"{place}.role",
        )
    for name in ("function_call", "audio"):
        if getattr(message, name):
            raise unsupported_field(f"{place}.{name}", "this version does not have it")
    reasoning = _reasoning(message, place)
    if message.tool_calls:
        return {**_calls(message, place), **reasoning}
    # Chat templates know the role system, not its newer name.
    role = "system" if message.role == "developer" else message.role
    turn = {"role": role, "content": text_of(message.content, f"{place}.content", ("text",))}
    turn |= reasoning
    return turn if message.name is None else {**turn, "name": message.name}


def _reasoning(message: ChatMessage, place: str) -> dict[str, str]:
    """The reasoning of an earlier answer; templates decide whether the model sees it again."""
    text = message.reasoning_content or message.reasoning
    if not text:
        return {}
    if message.role != "assistant":
        param = f"{place}.reasoning_content"
        raise InvalidRequest(f"{param}: only in messages of the assistant", param=param)
    return {"reasoning_content": text}


def _result(message: ChatMessage, place: str) -> dict[str, Any]:
    """The result of a call."""
    if message.tool_call_id is None:
        param = f"{place}.tool_call_id"
        raise InvalidRequest(f"{param}: required", param=param)
    content = text_of(message.content, f"{place}.content", ("text",))
    turn = {"role": "tool", "tool_call_id": message.tool_call_id, "content": content}
    return turn if message.name is None else {**turn, "name": message.name}


def _calls(message: ChatMessage, place: str) -> dict[str, Any]:
    """An answer that called functions, with or without text before."""
    if message.role != "assistant":
        param = f"{place}.tool_calls"
        raise InvalidRequest(f"{param}: only in messages of the assistant", param=param)
    content = message.content
    calls = [
        chat_tools.turn_of_call(call, f"{place}.tool_calls[{index}]")
        for index, call in enumerate(message.tool_calls or ())
    ]
    text = "" if content is None else text_of(content, f"{place}.content", ("text",))
    return {"role": "assistant", "content": text, "tool_calls": calls}


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

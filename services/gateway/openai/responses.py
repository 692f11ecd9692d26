"""/v1/responses, the request: instructions and input as a conversation, with tools."""

from dataclasses import replace
from typing import Any, Literal

import msgspec

from baton.wire.failures import InvalidRequest
from services.gateway.openai import limits, response_reasoning, response_tools, structured
from services.gateway.openai.chat import ROLES, text_of
from services.gateway.openai.decoding import decode_object, described, to_struct, unsupported_field
from services.gateway.openai.generation import ChatMessages, GenerationRequest, Thread, Tools
from services.gateway.openai.shared_fields import (
    HARMLESS_VALUES,
    CommonFields,
    sampling_of,
    template_kwargs_of,
)

UNSUPPORTED = {
    **HARMLESS_VALUES,
    "context_management": ([],),
    "image": (),
    "prompt": (),
    "access_programs": (),
}

_INCLUDED_LOGPROBS = "message.output_text.logprobs"
# Parts of items that no response has here, so that there is nothing to include.
_INCLUDED_ABSENT = (
    "code_interpreter_call.outputs", "computer_call_output.output.image_url",
    "file_search_call.results", "message.input_image.image_url", "reasoning.encrypted_content",
    "web_search_call.action.sources", "web_search_call.results",
)  # fmt: skip
PART_KINDS = ("input_text", "output_text", "text")
# Keys of an answer's items, besides role and content, that clients send back.
_IGNORED_ITEM_KEYS = {"id", "status", "phase"}
_MAX_IGNORED_CHARS = 512


class ConversationName(msgspec.Struct, forbid_unknown_fields=True):
    """A conversation, as an object."""

    id: limits.UserId


class ResponseFields(CommonFields):
    """The supported fields of a response request."""

    input: Any
    instructions: limits.Text | None = None
    max_output_tokens: limits.MaxTokens | None = None
    include: limits.Includes | None = None
    text: structured.TextOptions | None = None
    top_logprobs: limits.NumLogprobs | None = None
    tools: response_tools.ToolList | None = None
    tool_choice: response_tools.ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: response_reasoning.ReasoningFields | None = None
    # As vLLM has it for chat completions.
    include_reasoning: bool | None = None
    # Counts calls of OpenAI's own tools, which are not served.
    max_tool_calls: limits.MaxTokens | None = None
    store: bool | None = None
    previous_response_id: limits.UserId | None = None
    conversation: limits.UserId | ConversationName | None = None
    background: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None


def parse(body: bytes) -> GenerationRequest:
    """The request in a response's body. Raises InvalidRequest."""
    fields = to_struct(decode_object(body), ResponseFields, UNSUPPORTED)
    reasoning = fields.reasoning or response_reasoning.ReasoningFields()
    prompt = prompt_of(_without_references(fields), fields.instructions or "", _tools(fields))
    template_kwargs = msgspec.json.encode(template_kwargs_of(reasoning.effort))
    return GenerationRequest(
        endpoint="responses",
        model=fields.model,
        prompt=msgspec.structs.replace(prompt, template_kwargs_json=template_kwargs),
        shows_reasoning=fields.include_reasoning is not False,
        num_logprobs=_num_logprobs(fields),
        repeated=_repeated(fields),
        thread=_thread(fields),
        **sampling_of(fields, fields.max_output_tokens, structured.of_text(fields.text)),
    )


def parse_to_count(body: bytes) -> GenerationRequest:
    """The request for the number of its prompt's tokens, in the same form. Raises
    InvalidRequest."""
    return replace(parse(body), endpoint="responses.input_tokens", stream=False)


def is_reference(item: Any) -> bool:
    """True for an item that only names a stored one (stored/references.py)."""
    return isinstance(item, dict) and item.get("type") == "item_reference"


def _has_references(fields: ResponseFields) -> bool:
    return isinstance(fields.input, list) and any(map(is_reference, fields.input))


def _without_references(fields: ResponseFields) -> Any:
    """The input with empty turns in the place of references, until they are known."""
    if not _has_references(fields):
        return fields.input
    empty = {"role": "user", "content": ""}
    return [empty if is_reference(item) else item for item in fields.input]


def prompt_of(items: Any, instructions: str, tools: Tools | None) -> ChatMessages:
    """The conversation of an input: text, or items. Raises InvalidRequest."""
    turns = _conversation(items)
    if instructions:
        turns.insert(0, {"role": "system", "content": instructions})
    has_calls = any(turn["role"] == "tool" or "tool_calls" in turn for turn in turns)
    return ChatMessages(msgspec.json.encode(turns), tools, has_calls)


def _repeated(fields: ResponseFields) -> dict[str, Any]:
    conversation = _conversation_id(fields)
    return {
        "background": bool(fields.background),
        "conversation": {"id": conversation} if conversation else None,
        "frequency_penalty": fields.frequency_penalty or 0.0,
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "max_tool_calls": fields.max_tool_calls,
        "metadata": fields.metadata or {},
        "parallel_tool_calls": fields.parallel_tool_calls is not False,
        "presence_penalty": fields.presence_penalty or 0.0,
        "previous_response_id": fields.previous_response_id,
        "prompt_cache_key": fields.prompt_cache_key,
        "reasoning": response_reasoning.repeated(
            fields.reasoning or response_reasoning.ReasoningFields()
        ),
        "safety_identifier": fields.safety_identifier,
        "store": fields.store is not False,
        "text": structured.text_object(fields.text),
        "tool_choice": msgspec.to_builtins(fields.tool_choice or "auto"),
        "tools": response_tools.repeated(fields.tools),
        "top_logprobs": fields.top_logprobs or 0,
        "truncation": fields.truncation or "disabled",
        **({"user": fields.user} if fields.user else {}),
    }


def _thread(fields: ResponseFields) -> Thread:
    conversation_id = _conversation_id(fields)
    if conversation_id and fields.previous_response_id:
        message = "conversation: does not go with previous_response_id"
        raise InvalidRequest(message, param="conversation")
    if fields.background and fields.store is False:
        message = "background: only with store true, so that the response can be fetched"
        raise InvalidRequest(message, param="background")
    return Thread(
        input_json=msgspec.json.encode(fields.input),
        instructions=fields.instructions or "",
        previous_response_id=fields.previous_response_id or "",
        conversation_id=conversation_id,
        is_stored=fields.store is not False,
        is_background=bool(fields.background),
        truncates=fields.truncation == "auto",
        has_references=_has_references(fields),
    )


def _conversation_id(fields: ResponseFields) -> str:
    given = fields.conversation
    return given.id if isinstance(given, ConversationName) else given or ""


def _num_logprobs(fields: ResponseFields) -> int | None:
    includes = fields.include or []
    for index, name in enumerate(includes):
        if name != _INCLUDED_LOGPROBS and name not in _INCLUDED_ABSENT:
            known = ", ".join((_INCLUDED_LOGPROBS, *_INCLUDED_ABSENT))
            why = f"got {described(name)}; expected one of {known}"
            raise unsupported_field(f"include[{index}]", why)
    if _INCLUDED_LOGPROBS in includes:
        return fields.top_logprobs or 0
    if fields.top_logprobs:
        message = f"top_logprobs: only with include {_INCLUDED_LOGPROBS}"
        raise InvalidRequest(message, param="top_logprobs")
    return None


def _tools(fields: ResponseFields) -> Tools | None:
    if fields.tools is None and fields.tool_choice is None:
        return None
    is_parallel = fields.parallel_tool_calls is not False
    found = response_tools.tools_of(fields.tools, fields.tool_choice, is_parallel=is_parallel)
    return found


def _conversation(given: Any) -> list[dict[str, Any]]:
    if isinstance(given, str) and given:
        return [{"role": "user", "content": given}]
    if not isinstance(given, list) or not 1 <= len(given) <= limits.MAX_MESSAGES:
        raise InvalidRequest(
            f"input: got {described(given)}; expected text or 1 to {limits.MAX_MESSAGES} messages",
            param="input",
        )
    turns: list[dict[str, Any]] = []
    for index, item in enumerate(given):
        _add_turn(turns, item, f"input[{index}]")
    return turns


def _add_turn(turns: list[dict[str, Any]], item: Any, place: str) -> None:
    """Add an item to the conversation. Calls belong to the answer before them."""
    kind = item.get("type") if isinstance(item, dict) else None
    if kind == "function_call":
        if not turns or turns[-1]["role"] != "assistant":
            turns.append({"role": "assistant", "content": ""})
        calls = turns[-1].setdefault("tool_calls", [])
        calls.append(response_tools.call_of(item, place))
    elif kind == "function_call_output":
        result = response_tools.result_of(item, place)
        content = _text(result.output, f"{place}.output")
        turns.append({"role": "tool", "tool_call_id": result.call_id, "content": content})
    elif kind == "reasoning":
        response_reasoning.add_turn(turns, item, place)
    else:
        turn = _turn(item, place)
        if turn["role"] == "assistant" and turns and response_reasoning.is_alone(turns[-1]):
            turns[-1] |= turn
        else:
            turns.append(turn)


def _turn(item: Any, place: str) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise InvalidRequest(f"{place}: got {described(item)}; expected a message", param=place)
    kind = item.get("type", "message")
    if kind != "message":
        raise InvalidRequest(
            f"{place}.type: got {described(kind)}; this version takes messages, "
            "reasoning, function_call and function_call_output",
            reason="unsupported_content",
            param=f"{place}.type",
        )
    for name in item.keys() - {"role", "content", "type"}:
        _check_ignored(name, item[name], place)
    role, content = item.get("role"), item.get("content")
    if role not in ROLES:
        raise InvalidRequest(
            f"{place}.role: got {described(role)}; expected one of {', '.join(ROLES)}",
            param=f"{place}.role",
        )
    return {
        "role": "system" if role == "developer" else role,
        "content": _text(content, f"{place}.content"),
    }


def _check_ignored(name: str, value: Any, place: str) -> None:
    """Check a key that is kept and listed as it came. Raises InvalidRequest."""
    if name not in _IGNORED_ITEM_KEYS:
        raise unsupported_field(f"{place}.{name}", "no such parameter")
    is_short_text = isinstance(value, str) and len(value) <= _MAX_IGNORED_CHARS
    if value is not None and not is_short_text:
        raise InvalidRequest(
            f"{place}.{name}: got {described(value)}; expected text of at most "
            f"{_MAX_IGNORED_CHARS} characters",
            param=f"{place}.{name}",
        )


def _text(content: Any, place: str) -> str:
    if isinstance(content, str):
        return content
    try:
        return text_of(msgspec.convert(content, limits.Parts), place, PART_KINDS)
    except msgspec.ValidationError:
        raise InvalidRequest(
            f"{place}: got {described(content)}; expected text or 1 to {limits.MAX_PARTS} parts",
            param=place,
        ) from None
